#!/bin/sh
# Checks the packages of the committed state, for this machine's architecture:
#
#   - Two builds, in clones at two paths, give the same bytes. (Both share Go's cache, so this
#     compares linking and packing.)
#   - The commands in the packages run, are static, and name their version and commit. NOTICES names every module in
#     them.
#   - The .deb, installed by dpkg into an empty root and purged, leaves nothing.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "packages: $*" >&2; exit 1; }
arch=$(go env GOHOSTARCH)
commit=$(git rev-parse HEAD)
for i in first second; do
	git clone -q . "$work/$i/checkout"
	git -C "$work/$i/checkout" checkout -q "$commit"
	"$work/$i/checkout/packaging/dist.sh" "$work/$i/dist" "$arch"
	rm -rf "$work/$i/checkout"
done
(cd "$work/first/dist" && sha256sum ./*)
diff -r "$work/first/dist" "$work/second/dist" || fail "two builds of one commit differ"

mkdir "$work/archive"
version=$(basename "$work"/first/dist/*.tar.gz | sed "s/^tensorcast-//; s/-linux-$arch.tar.gz\$//")
tar -C "$work/archive" --strip-components=1 -xzf "$work"/first/dist/*.tar.gz
for c in ggufmap tracer analyze prefetchd; do
	said=$("$work/archive/bin/$c" --version)
	echo "$said" | grep -qF "$version, revision $commit of 20" || fail "$c says $said, want $version and $commit"
	readelf --program-headers --wide "$work/archive/bin/$c" | grep -q INTERP && fail "$c is not static"
	grep -q "^.TH .*${c}" -i "$work/archive/share/man/man1/$c.1" || fail "$c has no manual page"
	for m in $(go version -m "$work/archive/bin/$c" | awk '$1 == "dep" { print $2 }'); do
		grep -q "^$m " "$work/archive/share/doc/tensorcast/NOTICES" || fail "NOTICES does not name $m, which is in $c"
	done
	grep -q "__start_$c" "$work/archive/share/bash-completion/completions/$c" || fail "$c has no completion"
done
for l in libtfmbs_device.so libggml-tfmbs.so libtfmbs_intercept.so; do
	[ -f "$work/archive/lib/$l" ] || fail "$l is missing"
done
[ -f "$work/archive/include/tfmbs_host.h" ] || fail "tfmbs_host.h is missing"

command -v dpkg > /dev/null || { echo "not checked: the .deb (dpkg is missing)"; exit 0; }
[ "$(id -u)" = 0 ] || { echo "not checked: the .deb's installation (needs root)"; exit 0; }
root=$work/root
mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates" "$root/usr/bin" "$root/usr/share" "$root/usr/lib"
# dpkg would remove an empty directory that is in no other package, so each gets a file.
for d in bin share lib; do echo other > "$root/usr/$d/other"; done
: > "$root/var/lib/dpkg/status"
: > "$root/var/lib/dpkg/available"
list_files() { (cd "$root" && find . -path ./var/lib/dpkg -prune -o -path ./var/log -prune -o -print | sort); }
list_files > "$work/before"
run_dpkg() {
	dpkg --root="$root" --log=/dev/null --force-depends --force-script-chrootless "$@" > "$work/log" 2>&1 ||
		{ cat "$work/log" >&2; fail "dpkg $*"; }
}
dpkg-deb --field "$work"/first/dist/*.deb Depends | grep -q '^libc6 (>= 2\.[0-9]*)$' ||
	fail "the .deb does not say which C library its libraries need"
run_dpkg --install "$work"/first/dist/*.deb
"$root/usr/bin/prefetchd" --version > /dev/null || fail "the installed prefetchd does not run"
(cd "$root" && md5sum --quiet -c var/lib/dpkg/info/tensorcast.md5sums) ||
	fail "installed files are not those of the package"
list_files > "$work/installed"
cmp -s "$work/before" "$work/installed" && fail "the .deb installed nothing"
run_dpkg --purge tensorcast
list_files > "$work/after"
diff "$work/before" "$work/after" || fail "the purged .deb left something"
