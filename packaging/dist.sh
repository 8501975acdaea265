#!/bin/sh
# Makes the packages: dist.sh OUT ARCH... writes OUT/tensorcast-VERSION-linux-ARCH.tar.gz and
# OUT/tensorcast_VERSION_ARCH.deb.
#
# The same commit, Go and C compiler give the same bytes at any path of the checkout: times are that
# of the commit, owners are root, and paths are trimmed. The commands are static (no cgo). The C
# libraries are made for this machine's architecture only.
#
# The variable BIN is for tests. It names a directory that make build has filled. Then its commands
# and libraries are packed as they are, only as a .deb and hardly compressed.
#
# The .deb needs dpkg-deb. Where that is missing, the .deb is left out with a message.
set -eu
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
export TZ=UTC LC_ALL=C
version=$(git describe --tags --match 'v[0-9]*' --abbrev=12 --dirty 2> /dev/null | sed 's/^v//; s/-/+/; s/-/./g')
if [ -z "$version" ]; then # a clone without tags: the newest version of CHANGELOG.md, and the time of the commit
	release=$(sed -n 's/^## \([0-9][0-9.]*\)$/\1/p' CHANGELOG.md | head -n 1)
	time=$(date -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S)
	version=$release+$time.$(git describe --always --abbrev=12 --dirty | tr - .)
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022

# The linker gets version and revision, because Go finds none in git's worktrees. Go's own stamp is
# off, so that all checkouts give the same result.
flags="-checklinkname=0 -s -w -X tensorcast/internal/cli.release=$version"
flags="$flags -X tensorcast/internal/cli.revision=$commit"
flags="$flags -X tensorcast/internal/cli.revisionTime=$(date -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)"

# compile builds the commands for architecture $1 into directory $2.
compile() {
	mkdir "$2"
	GOOS=linux GOARCH=$1 CGO_ENABLED=0 GOFLAGS='' \
		go build -trimpath -buildvcs=false -ldflags="$flags" -o "$2/" ./cmd/...
}

# pack makes the packages of architecture $1.
pack() {
	arch=$1 bin=$work/bin-$1
	if [ "$arch" = "$native" ]; then bin=$run; else compile "$arch" "$bin"; fi
	if [ -z "${BIN:-}" ]; then
		name=tensorcast-$version-linux-$arch
		packaging/install.sh "$bin" "$work/$name" "" "$run"
		rm "$work/$name/share/doc/tensorcast/installed" # nothing was installed
		tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu \
			-C "$work" -cf - "$name" | gzip -9n > "$out/$name.tar.gz"
	fi

	if ! command -v dpkg-deb > /dev/null; then
		echo "no .deb: dpkg-deb is missing (Debian package dpkg)" >&2
		return
	fi
	deb=$work/deb-$arch
	packaging/install.sh "$bin" "$deb" /usr "$run"
	rm "$deb/usr/share/doc/tensorcast/installed"
	find "$deb/usr/share/man" -type f -exec gzip -9n {} +
	mv "$deb/usr/share/doc/tensorcast/LICENSE" "$work/license"
	{
		printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n'
		printf 'Upstream-Name: tensorcast\n\n'
		printf 'Files: *\nCopyright: the tensorcast authors\nLicense: Apache-2.0\n'
		sed 's/^/ /; s/^ *$/ ./' "$work/license"
		printf '\nFiles: usr/bin/*\nCopyright: the tensorcast authors, and those that NOTICES names\n'
		printf 'License: Apache-2.0 and others\n'
		printf ' The commands contain software of others. What that is, its licences and their texts\n'
		printf ' are in /usr/share/doc/tensorcast/NOTICES.\n'
	} > "$deb/usr/share/doc/tensorcast/copyright"
	# The libraries need the highest version of the C library that their symbols name. The commands
	# need no C library.
	depends=
	if [ "$arch" = "$native" ]; then # for others there are none, though usr/lib has systemd's units
		needed=$(readelf --dyn-syms --wide "$deb"/usr/lib/*.so |
			sed -n 's/.*@GLIBC_\([0-9.]*\).*/\1/p' | sort -Vu | tail -n 1)
		[ -n "$needed" ] || { echo "dist: the libraries name no version of the C library" >&2; exit 1; }
		depends="Depends: libc6 (>= $needed)"
	fi
	mkdir "$deb/DEBIAN"
	install -m 755 packaging/debian/* "$deb/DEBIAN/"
	# dpkg keeps what somebody has changed in these at an upgrade, and removes them at a purge.
	(cd "$deb" && find etc -type f | sort | sed 's,^,/,') > "$deb/DEBIAN/conffiles"
	{
		echo "Package: tensorcast"
		echo "Version: $version"
		echo "Architecture: $arch"
		echo "Maintainer: $(git log -1 --format='%an <%ae>')"
		echo "Installed-Size: $(find "$deb/usr" "$deb/etc" -type f -printf '%s\n' |
			awk '{ n += $1 } END { printf "%d", n / 1024 }')"
		[ -z "$depends" ] || echo "$depends"
		echo "Section: utils"
		echo "Priority: optional"
		echo "Description: language models that do not quite fit the memory"
		echo " prefetchd keeps the right bytes of a model's file in memory while an unmodified"
		echo " llama.cpp runs it under too little memory. tracer records which tensors each"
		echo " token reads, analyze says what that means, and ggufmap prints which bytes of a"
		echo " model's file hold which tensor."
	} > "$deb/DEBIAN/control"
	(cd "$deb" && find usr -type f | sort | xargs -d '\n' md5sum) > "$deb/DEBIAN/md5sums"
	find "$deb" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
	dpkg-deb --root-owner-group --uniform-compression -Zgzip "-z$level" \
		--build "$deb" "$out/tensorcast_${version}_$arch.deb" > /dev/null
}

native=$(go env GOHOSTARCH) level=9
# The commands in $run write manual pages and completions, which are the same for all architectures.
run=${BIN:-$work/bin-$native}
if [ -n "${BIN:-}" ]; then
	level=1
else
	compile "$native" "$run"
	make -s libraries BIN="$run"
fi
for a in "$@"; do pack "$a"; done
