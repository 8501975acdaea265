#!/bin/sh
# Installs what `make build` made, and removes it again. It compiles nothing, so it needs no Go, no git and no compiler when root runs it.
#
#   install.sh BIN DESTDIR PREFIX [RUN]     installs the commands in BIN below DESTDIR/PREFIX, with man pages, completions, units, documents
#   install.sh --remove DESTDIR PREFIX      removes that
#
# RUN is a directory with the same commands for this machine, which write the man pages and completions; without it they are BIN's own.
# What was installed is listed in share/doc/tensorcast/installed, files and directories: only those are removed, and of the directories only
# those that were not there before.
set -eu
commands="ggufmap tracer analyze prefetchd"
libraries="libtfmbs_device.so libggml-tfmbs.so libtfmbs_intercept.so"
fail() { echo "install: $*" >&2; exit 1; }

# remove takes away the files of the list $1 below $2, and, if $3 is all, the directories, the innermost first.
remove() {
	sed -n 's/^file //p' "$1" | while IFS= read -r f; do rm -f "$2/$f"; done
	[ "$3" = all ] || return 0
	sed -n 's/^directory //p' "$1" | sort -r | while IFS= read -r d; do
		[ ! -d "$2/$d" ] || rmdir "$2/$d" 2> /dev/null || true # others' files are in it
	done
}

# The list names paths below DESTDIR: PREFIX itself may be new.
relative() { printf %s "$1" | sed 's,//*,/,g; s,^/,,; s,/$,,'; }

if [ "${1:-}" = --remove ]; then
	[ $# = 3 ] || fail "usage: install.sh --remove DESTDIR PREFIX"
	prefix=$(relative "$3")
	list=$2/${prefix:+$prefix/}share/doc/tensorcast/installed
	[ -f "$list" ] || fail "nothing is installed there: $list is missing (the same PREFIX and DESTDIR as for make install are needed)"
	copy=$(mktemp)
	trap 'rm -f "$copy"' EXIT
	cp "$list" "$copy"
	remove "$copy" "${2:-/}" all
	exit 0
fi

[ $# = 3 ] || [ $# = 4 ] || fail "usage: install.sh BIN DESTDIR PREFIX [RUN]"
bin=$1 destdir=$2 prefix=$(relative "$3") run=${4:-$1}
here=$(cd "$(dirname "$0")/.." && pwd)
for c in $commands; do
	[ -x "$bin/$c" ] || fail "$bin/$c is missing: run make build first, not as root"
	[ -x "$run/$c" ] || fail "$run/$c is missing"
done
umask 022
list=${prefix:+$prefix/}share/doc/tensorcast/installed
work=$(mktemp -d)
echo "file $list" > "$work/list"
: > "$work/before"
[ ! -f "$destdir/$list" ] || cp "$destdir/$list" "$work/before"

# record writes the list. It is written after a failure, too, so that what was installed until then can be removed.
record() {
	status=$?
	directory "${list%/*}"
	grep "$1" "$work/before" >> "$work/list" || true # an earlier installation's
	sort -u "$work/list" > "$work/sorted"
	install -m 644 "$work/sorted" "$destdir/$list"
	rm -rf "$work"
	exit $status
}
trap 'record .' EXIT

# directory makes $1, a path below DESTDIR, with those above it, and lists those that were not there.
directory() {
	[ ! -d "$destdir/$1" ] || return 0
	case $1 in
	'') mkdir -p "$destdir/"; return ;;
	*/*) directory "${1%/*}" ;;
	*) directory '' ;;
	esac
	mkdir "$destdir/$1"
	echo "directory $1" >> "$work/list"
}

# put installs file $2 as $3 (below PREFIX) with mode $1.
put() {
	to=${prefix:+$prefix/}$3
	directory "${to%/*}"
	echo "file $to" >> "$work/list"
	install -m "$1" "$2" "$destdir/$to"
}

for c in $commands; do
	put 755 "$bin/$c" "bin/$c"
	"$run/$c" __man > "$work/out"
	put 644 "$work/out" "share/man/man1/$c.1"
	"$run/$c" completion bash > "$work/out"
	put 644 "$work/out" "share/bash-completion/completions/$c"
	"$run/$c" completion zsh > "$work/out"
	put 644 "$work/out" "share/zsh/site-functions/_$c"
	"$run/$c" completion fish > "$work/out"
	put 644 "$work/out" "share/fish/vendor_completions.d/$c.fish"
done
for l in $libraries; do # where there is no C compiler for the architecture they are not built
	[ ! -f "$bin/$l" ] || put 644 "$bin/$l" "lib/$l"
done
[ ! -f "$bin/libtfmbs_device.so" ] || put 644 "$here/include/tfmbs_host.h" include/tfmbs_host.h
for u in "$here"/packaging/systemd/*.service; do # below /usr/local, too, is where systemd looks for units
	sed "s,@BINDIR@,${prefix:+/$prefix}/bin,g" "$u" > "$work/out"
	put 644 "$work/out" "lib/systemd/system/${u##*/}"
done
for f in LICENSE README.md SECURITY.md; do put 644 "$here/$f" "share/doc/tensorcast/$f"; done

# What an earlier installation had and this one has not goes. The directories that it made stay known.
grep '^file ' "$work/before" | grep -vxFf "$work/list" > "$work/old" || true
remove "$work/old" "$destdir" files
trap 'record ^directory' EXIT
