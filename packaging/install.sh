#!/bin/sh
# Installs the output of `make build`, and removes it again. It compiles nothing, so it needs no Go,
# no git and no compiler when root runs it.
#
#   install.sh BIN DESTDIR PREFIX [RUN]     installs the commands in BIN below DESTDIR/PREFIX, with manual pages,
#                                           completions, units and documents
#   install.sh --remove DESTDIR PREFIX      removes them
#
# RUN is a directory with the same commands for this machine, which write the manual pages and
# completions. Without it, the commands in BIN write them.
#
# Installed files, and directories that did not exist before, are listed in
# share/doc/tensorcast/installed. Only those are removed.
#
# The configuration file is installed where prefetchd looks for it, /etc/tensorcast/prefetchd.yaml below
# DESTDIR, whatever PREFIX is, and only by somebody who may write there. Once it was changed it is
# neither replaced nor removed.
set -eu
commands="ggufmap tracer analyze prefetchd"
libraries="libtfmbs_device.so libggml-tfmbs.so libtfmbs_intercept.so"
fail() { echo "install: $*" >&2; exit 1; }

# sum_of prints a checksum of the content of file $1. It prints nothing if that cannot be read.
sum_of() { [ ! -f "$1" ] || sha256sum < "$1" | cut -d ' ' -f 1; }

# remove removes the files of the list $1 below $2. If $3 is all, it also removes the directories,
# the innermost first.
remove() {
	sed -n 's/^file //p' "$1" | while IFS= read -r f; do rm -f "$2/$f"; done
	sed -n 's/^config //p' "$1" | while IFS=' ' read -r sum f; do
		[ "$(sum_of "$2/$f")" != "$sum" ] || rm -f "$2/$f"
	done
	[ "$3" = all ] || return 0
	sed -n 's/^directory //p' "$1" | sort -r | while IFS= read -r d; do
		[ ! -d "$2/$d" ] || rmdir "$2/$d" 2> /dev/null || true # it stays if it has files of others
	done
}

# relative makes a path relative to DESTDIR. The list has such paths, because PREFIX itself may be new.
relative() { printf %s "$1" | sed 's,//*,/,g; s,^/,,; s,/$,,'; }

if [ "${1:-}" = --remove ]; then
	[ $# = 3 ] || fail "usage: install.sh --remove DESTDIR PREFIX"
	prefix=$(relative "$3")
	list=$2/${prefix:+$prefix/}share/doc/tensorcast/installed
	[ -f "$list" ] || fail "nothing is installed there: $list is missing" \
		"(the same PREFIX and DESTDIR as for make install are needed)"
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

# record writes the list. It does so after a failure, too, so that the files installed until then
# can be removed. Entries of an earlier installation that match $1 are kept.
record() {
	status=$?
	make_directory "${list%/*}"
	grep "$1" "$work/before" >> "$work/list" || true
	sort -u "$work/list" > "$work/sorted"
	install -m 644 "$work/sorted" "$destdir/$list"
	rm -rf "$work"
	exit $status
}
trap 'record .' EXIT

# make_directory creates $1, a path below DESTDIR, and the directories above it. It lists those that
# did not exist.
make_directory() {
	[ ! -d "$destdir/$1" ] || return 0
	case $1 in
	'') mkdir -p "$destdir/"; return ;;
	*/*) make_directory "${1%/*}" ;;
	*) make_directory '' ;;
	esac
	mkdir "$destdir/$1"
	echo "directory $1" >> "$work/list"
}

# put installs file $2 as $3 (below PREFIX) with mode $1.
put() {
	to=${prefix:+$prefix/}$3
	make_directory "${to%/*}"
	echo "file $to" >> "$work/list"
	install -m "$1" "$2" "$destdir/$to"
}

# put_config installs file $1 as $2 (below DESTDIR), unless somebody has written or changed $2.
put_config() {
	if [ -e "$destdir/$2" ] || [ -L "$destdir/$2" ]; then
		grep -qxF "config $(sum_of "$destdir/$2") $2" "$work/before" || return 0
	fi
	above=$destdir/${2%/*}
	while [ ! -d "$above" ] && [ -n "$above" ]; do above=${above%/*}; done
	[ -w "${above:-/}" ] || return 0
	make_directory "${2%/*}"
	echo "config $(sum_of "$1") $2" >> "$work/list"
	install -m 644 "$1" "$destdir/$2"
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
for l in $libraries; do # they are not built where there is no C compiler for the architecture
	[ ! -f "$bin/$l" ] || put 644 "$bin/$l" "lib/$l"
done
[ ! -f "$bin/libtfmbs_device.so" ] || put 644 "$here/include/tfmbs_host.h" include/tfmbs_host.h
for u in "$here"/packaging/systemd/*.service; do # systemd also looks for units below /usr/local
	sed "s,@BINDIR@,${prefix:+/$prefix}/bin,g" "$u" > "$work/out"
	put 644 "$work/out" "lib/systemd/system/${u##*/}"
done
# Documents keep their places relative to each other, because they link to each other.
documents=$(cd "$here" &&
	find docs thesis-notes -name '*.md' -o -name '*.png' -o -name '*.svg' -o -name '*.py' && ls fabric/*.md)
documents="$documents LICENSE NOTICES README.md SECURITY.md CHANGELOG.md"
documents="$documents packaging/compose.yaml packaging/prefetchd.yaml"
# What a fleet is set up with (docs/fleet.md), but for its tests.
documents="$documents $(cd "$here/packaging" &&
	find kubernetes prometheus grafana -type f ! -name '*.go' ! -name 'go.*' | sort | sed 's,^,packaging/,')"
for f in $documents; do
	put 644 "$here/$f" "share/doc/tensorcast/$f"
done
put_config "$here/packaging/prefetchd.yaml" etc/tensorcast/prefetchd.yaml

# Remove files that only an earlier installation had. The directories that it created stay in the list.
grep '^file ' "$work/before" | grep -vxFf "$work/list" > "$work/old" || true
remove "$work/old" "$destdir" files
trap 'record ^directory' EXIT
