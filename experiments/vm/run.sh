#!/bin/sh
# Runs a command in a virtual machine with Debian's own kernel and cgroup v2, and ends with the command's exit status.
#
#	experiments/vm/run.sh [options] COMMAND [ARGUMENT...]
#
#	--suite SUITE     Debian's kernel of another suite than this machine's, for instance bookworm-backports
#	--memory SIZE     of the machine, as QEMU writes it (3G)
#	--swap MIB        a swap area on a disk (none)
#	--disk MIB        the ext4 file system for models (4096)
#	--disk-rate MIB   what that disk reads and writes per second, at most (no limit)
#	--limit SECONDS   after so long the machine is switched off, and the exit status is 124 (3600)
#	--tcg             emulate the processor even where KVM works
#
# What the command finds:
#   - all files of this machine, below their own names, as they are when they are opened. Its changes go to
#     memory and are forgotten. So the kernel is Debian's, and all programs and libraries are this
#     machine's.
#   - /disk: an empty ext4 file system on a virtio disk, which is TMPDIR, too. A directory shared from
#     outside has no page cache like a disk's, so models belong here.
#   - cgroup v2 as systemd leaves it: the command is in /user.slice/session.scope, and the memory controller
#     is on for all groups.
#   - tracefs, bpffs, the working directory, PATH and HOME; two processors; no network; nothing on standard
#     input. It is root.
#   - the kernel's modules, by modprobe.
# Its output and its errors arrive where this script's go. The kernel's messages are in console.log of the
# cache (printed if it panics).
#
# It needs QEMU (Debian: qemu-system-x86), mkfs.ext4 (e2fsprogs) and an apt that has Debian's packages: the
# kernel's and busybox-static are downloaded as apt is configured, and unpacked, not installed. They are
# kept below $XDG_CACHE_HOME/tensorcast/vm (~/.cache/tensorcast/vm). Root is not needed; without it, the
# command can read what you can read.
set -eu

say() { echo "vm: $*" >&2; }
fail() { say "$*"; exit 1; }
usage() { sed -n '4,12s/^#\t\{0,1\}//p' "$0" >&2; exit 2; }
count() { # OPTION VALUE: a whole number
	case $2 in '' | *[!0-9]*) say "$1 must be a whole number, not '$2'"; exit 2 ;; esac
	echo "$2"
}

suite='' memory=3G swap=0 disk=4096 rate=0 limit=3600 accel=''
while [ $# -gt 0 ]; do
	case $1 in
	--suite | --memory | --swap | --disk | --disk-rate | --limit)
		[ $# -ge 2 ] || usage
		case $1 in
		--suite) suite=$2 ;;
		--memory) memory=$2 ;;
		--swap) swap=$(count "$1" "$2") ;;
		--disk) disk=$(count "$1" "$2") ;;
		--disk-rate) rate=$(count "$1" "$2") ;;
		--limit) limit=$(count "$1" "$2") ;;
		esac
		shift 2 ;;
	--tcg) accel=tcg; shift ;;
	--) shift; break ;;
	-*) usage ;;
	*) break ;;
	esac
done
[ $# -gt 0 ] || usage

here=$(cd "$(dirname "$0")" && pwd)
PATH=$PATH:/usr/sbin:/sbin # mkfs.ext4
missing=''
command -v qemu-system-x86_64 > /dev/null || missing="$missing qemu-system-x86"
command -v mkfs.ext4 > /dev/null || missing="$missing e2fsprogs"
[ -z "$missing" ] || fail "programs are missing. Install them: sudo apt-get install --no-install-recommends$missing"
command -v apt-get > /dev/null || fail "apt-get is missing: the kernel is a package of Debian"
command -v dpkg-deb > /dev/null || fail "dpkg-deb is missing: the kernel is a package of Debian"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/tensorcast/vm
mkdir -p "$cache"

# Two scripts at once must not fill the cache at once.
exec 9> "$cache/lock"
flock 9

# Debian's packages of another suite come from where apt gets this machine's, with lists of their own.
# Sandboxing is off because apt's own user cannot write to a home directory.
set_apt() {
	apt='-o APT::Sandbox::User='$(id -un)
	[ -n "$suite" ] || return 0
	dir=$cache/apt/$suite
	apt="$apt -o Dir::State::Lists=$dir/lists -o Dir::Cache=$dir/cache -o Dir::Etc::SourceList=$dir/sources.list"
	apt="$apt -o Dir::Etc::SourceParts=/dev/null"
	[ ! -e "$dir/ready" ] || return 0
	mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
	site=$(apt-get indextargets --format '$(ORIGIN) $(LABEL) $(SITE)' | sed -n 's/^Debian Debian //p' | head -n 1)
	[ -n "$site" ] || fail "apt has no lists of Debian's packages. Get them: sudo apt-get update"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site $suite main" > "$dir/sources.list"
	apt-get $apt -qq update >&2 || fail "apt found no suite $suite"
	touch "$dir/ready"
}

unpack() { # PACKAGE DIR
	[ ! -d "$2" ] || return 0
	say "getting Debian's package $1"
	rm -rf "$2.new"
	mkdir -p "$2.new/deb"
	(cd "$2.new/deb" && apt-get $apt -qq download "$1" >&2) ||
		fail "$1 could not be downloaded. If apt's lists are old: sudo apt-get update"
	dpkg-deb -x "$2.new"/deb/*.deb "$2.new"
	rm -rf "$2.new/deb"
	mv "$2.new" "$2"
}

apt=''
suite_wanted=$suite suite=''
set_apt
unpack busybox-static "$cache/busybox"
busybox=$cache/busybox/bin/busybox
suite=$suite_wanted
set_apt
kernel=$(apt-cache $apt depends linux-image-amd64 | sed -n 's/^  Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
[ -n "$kernel" ] || fail "apt knows no package linux-image-amd64${suite:+ in $suite}"
unpack "$kernel" "$cache/$kernel"
version=${kernel#linux-image-}
root=$cache/$kernel
modules=$root/lib/modules
[ -d "$modules" ] || modules=$root/usr/lib/modules
if [ ! -e "$modules/$version/modules.dep" ]; then # the package makes this file when it is installed
	mkdir -p "$cache/depmod/lib"
	rm -f "$cache/depmod/lib/modules"
	ln -s "$modules" "$cache/depmod/lib/modules"
	"$busybox" depmod -b "$cache/depmod" "$version"
fi

# What the machine starts with: busybox, the modules that it needs to see this machine's files, and its first program.
work=$(mktemp -d "$cache/run-XXXXXX")
readers=''
clean() {
	for pid in $readers; do kill "$pid" 2> /dev/null || true; done
	rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
initrd=$work/initrd
mkdir -p "$initrd/bin" "$initrd/job"
cp "$busybox" "$initrd/bin/busybox"
cp "$here/init.sh" "$initrd/init"
cp "$here/session.sh" "$initrd/job/session.sh"
chmod 755 "$initrd/init"
quote() { printf "'%s' " "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }
{
	echo "export PATH=$(quote "$PATH") HOME=$(quote "${HOME:-/root}")"
	echo "cd $(quote "$(pwd)")"
	printf 'exec '
	for word in "$@"; do quote "$word"; done
	echo
} > "$initrd/job/command"
{
	echo "modules=$(quote "$modules")"
	echo "swap=$swap"
} > "$initrd/job/settings"
# add_modules MODULE... adds to seen the modules' files, after the files that they need.
add_modules() {
	for name in "$@"; do
		line=$(sed -n "s,^\(kernel/[^:]*/$name\.ko[.a-z0-9]*\): *,\1 ,p" "$modules/$version/modules.dep" | head -n 1)
		for file in $(echo "$line" | tr ' ' '\n' | tac); do
			case " $seen " in *" $file "*) continue ;; esac
			seen="$seen $file"
		done
	done
}
seen=''
# A module that is missing is part of the kernel.
add_modules virtio_pci virtio_blk virtio_console 9pnet_virtio 9p overlay crc32c_generic crc32c_intel ext4
for file in $seen; do
	to=$initrd/modules/$(basename "${file%.xz}")
	mkdir -p "$initrd/modules"
	case $file in
	*.xz) "$busybox" xzcat "$modules/$version/$file" > "$to" ;;
	*) cp "$modules/$version/$file" "$to" ;;
	esac
	echo "/modules/$(basename "$to")" >> "$initrd/job/modules"
done
(cd "$initrd" && find . | "$busybox" cpio -o -H newc 2> /dev/null) > "$work/initrd.cpio"
flock -u 9

image() { # FILE MIB
	truncate -s "$2M" "$1"
}
image "$work/disk" "$disk"
mkfs.ext4 -q -F "$work/disk"
throttle=''
[ "$rate" = 0 ] || throttle=",throttling.bps-total=$((rate * 1048576))"
set -- -drive "file=$work/disk,format=raw,if=virtio,cache=writeback,discard=unmap$throttle"
if [ "$swap" != 0 ]; then
	image "$work/swap" "$swap"
	set -- "$@" -drive "file=$work/swap,format=raw,if=virtio,cache=writeback"
fi

# KVM may be there and not work, in a machine that is virtual itself. So a machine is started whose disk has the code
# "out 0xf4, al; jmp -2". If KVM works, this ends QEMU at once with the exit status 1 + 2 al.
if [ -z "$accel" ]; then
	accel=tcg
	if [ -r /dev/kvm ] && [ -w /dev/kvm ]; then
		{ printf '\260\000\346\364\353\376'; head -c 504 /dev/zero; printf '\125\252'; } > "$work/probe"
		probe=0
		timeout 10 qemu-system-x86_64 -accel kvm -machine pc -cpu max -display none -nodefaults \
			-device isa-debug-exit,iobase=0xf4,iosize=1 \
			-drive "file=$work/probe,format=raw,if=ide" > /dev/null 2>&1 || probe=$?
		[ "$probe" != 1 ] || accel=kvm
	fi
	[ "$accel" = kvm ] || say "KVM does not work here: the processor is emulated, ten times or more slower"
fi
[ "$accel" = kvm ] || accel=tcg,thread=multi

mkfifo "$work/out" "$work/err"
touch "$work/status"
cat "$work/out" &
readers=$!
cat "$work/err" >&2 &
readers="$readers $!"
console=$cache/console.log
status=0
# no_timer_check: as the kernel starts, it counts for a moment whether the timer ticks, and panics if it does not. Where
# the host is busy, an emulated timer is late.
timeout --foreground -k 10 "$limit" nice -n 5 qemu-system-x86_64 -accel "$accel" -machine q35 -cpu max \
	-smp 2 -m "$memory" \
	-display none -nodefaults -no-reboot \
	-kernel "$root/boot/vmlinuz-$version" -initrd "$work/initrd.cpio" \
	-append 'console=ttyS0 panic=-1 quiet loglevel=6 no_timer_check' \
	-serial "file:$console" \
	-virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
	-device virtio-serial \
	-chardev "file,id=out,path=$work/out" -device virtserialport,chardev=out,name=out \
	-chardev "file,id=err,path=$work/err" -device virtserialport,chardev=err,name=err \
	-chardev "file,id=status,path=$work/status" -device virtserialport,chardev=status,name=status \
	"$@" < /dev/null || status=$?
wait $readers || true
readers=''
if [ "$status" != 0 ]; then
	[ "$status" != 124 ] || say "the machine was switched off after $limit s (--limit)"
	exit "$status"
fi
status=$(cat "$work/status")
if [ -z "$status" ]; then
	tail -n 40 "$console" >&2
	fail "the machine ended before the command; its last messages are above, all of them in $console"
fi
exit "$status"
