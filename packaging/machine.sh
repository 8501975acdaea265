#!/bin/sh
# Runs a command in a copy of this machine that is booted by systemd and thrown away afterwards. So
# packages can really be installed, and services started.
#
#	packaging/machine.sh DIR COMMAND [ARGUMENT...]
#
# The copy has this machine's kernel, network and files. Its changes of files go to an overlay and
# are dropped, except in DIR, which is the same directory inside. Models belong there, so that they
# are on a disk's own file system. The copy has its own processes, the first of which is systemd,
# and its own branch of each hierarchy of control groups.
#
# COMMAND runs as a service with DIR as its working directory. The variable LAYER in its environment
# is the directory with all changed files (without those in /run, /tmp and DIR).
#
# The output is printed at the end. The exit status is that of the command, or 124 after ten
# minutes, or 125 with a message if no such copy can be made here. It needs root, and Debian's
# package systemd (which need not have started this machine).
set -eu

say() { echo "machine: $*" >&2; }
cannot() { say "$*"; exit 125; }
[ $# -ge 2 ] || { sed -n 's/^#\t//p' "$0" >&2; exit 2; }
[ "$(id -u)" = 0 ] || cannot "only root can mount, and make control groups"
systemd=''
for s in /lib/systemd/systemd /usr/lib/systemd/systemd; do [ ! -x $s ] || systemd=$s; done
[ -n "$systemd" ] || cannot "systemd is missing. Install it: apt-get install systemd"
dir=$(cd "$1" && pwd)
shift

name=machine-$$
work=$dir/$name
groups='' # the groups in which a branch was created, one per hierarchy
clean() {
	for g in $groups; do
		echo $$ > "$g/cgroup.procs" 2> /dev/null || true
		[ ! -d "$g/$name" ] || find "$g/$name" -depth -type d -exec rmdir {} + || say "$g/$name could not be removed"
	done
	rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir "$work" "$work/upper" "$work/layer" "$work/root"

# The branches are below the groups in which this script is.
own_group() { # PATH TYPE: this script's group in the hierarchy that is mounted at PATH
	group=$(awk -F: -v name="${1##*/}" -v type="$2" '{
		if (type == "cgroup2") { if ($1 == 0) print $3; next }
		n = split($2, names, ",")
		for (i = 1; i <= n; i++) { sub("name=", "", names[i]); if (names[i] == name) print $3 }
	}' /proc/self/cgroup | head -n 1)
	echo "$1${group%/}"
}
while read -r _ path type _; do
	case $type in
	cgroup | cgroup2) ;;
	*) continue ;;
	esac
	g=$(own_group "$path" "$type")
	[ -d "$g" ] || cannot "this script's own control group, $g, cannot be seen from here"
	if [ "$type" = cgroup2 ] && grep -qw memory "$g/cgroup.controllers"; then # false where version 1 has the memory
		echo +memory > "$g/cgroup.subtree_control" 2> /dev/null ||
			cannot "the control group $g has processes, so it can have no groups with limits:" \
				"run this in the root group"
	fi
	mkdir "$g/$name"
	groups="$groups $g"
	if [ "$type" = cgroup ]; then
		for f in cpuset.cpus cpuset.mems; do [ ! -e "$g/$name/$f" ] || cat "$g/$f" > "$g/$name/$f"; done
	fi
	echo $$ > "$g/$name/cgroup.procs"
done < /proc/self/mounts

quote() { printf "'%s' " "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }
{
	echo ": > $(quote "$work/begun")"
	echo "export LAYER=$(quote "$work/upper") PATH=$(quote "$PATH") HOME=$(quote "${HOME:-/root}")"
	printf 'exec '
	for word in "$@"; do quote "$word"; done
	echo
} > "$work/command"
cat > "$work/service" << EOF
[Unit]
Description=The command of machine.sh
Requires=basic.target
After=basic.target
SuccessAction=exit
FailureAction=exit

[Service]
Type=exec
WorkingDirectory=$dir
ExecStart=/bin/sh $work/command
StandardOutput=append:$work/out
StandardError=append:$work/err
EOF
: > "$work/out"
: > "$work/err"

cat > "$work/start" << 'EOF'
set -eu
work=$1 dir=$2 systemd=$3
cd "$work/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/layer" .
cd "$work/root" # the overlay
mount --bind "$dir" ".$dir"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for d in null zero full random urandom tty; do
	: > dev/$d
	mount --bind /dev/$d dev/$d
done
grep ' /sys/fs/cgroup[^ ]* cgroup2\{0,1\} ' /proc/self/mounts > run/groups
grep -q ' /sys/fs/cgroup cgroup2 ' run/groups || mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
while read -r _ path type options _; do
	options=$(echo "$options" | tr , '\n' | grep -vxE 'rw|ro|nosuid|nodev|noexec|relatime' | paste -sd ,) || true
	mkdir -p ".$path"
	mount -t "$type" ${options:+-o "$options"} "$type" ".$path"
done < run/groups
# Mask services that would change this machine's devices, clock, modules and disks.
mkdir -p etc/systemd/system mnt/old
for u in systemd-udevd systemd-udev-trigger systemd-sysctl systemd-modules-load systemd-remount-fs systemd-binfmt; do
	ln -sf /dev/null etc/systemd/system/$u.service
done
for u in kernel control; do ln -sf /dev/null etc/systemd/system/systemd-udevd-$u.socket; done
for u in apt-daily apt-daily-upgrade dpkg-db-backup e2scrub_all fstrim man-db; do
	ln -sf /dev/null etc/systemd/system/$u.timer
done
: > etc/fstab
cp "$work/service" etc/systemd/system/machine.service
pivot_root . mnt/old
cd /
umount -l /mnt/old
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
	"$systemd" --unit=machine.service --log-target=console --show-status=no
EOF
status=0
timeout -k 10 600 unshare --mount --pid --uts --ipc --cgroup --fork --kill-child --propagation private \
	sh "$work/start" "$work" "$dir" "$systemd" > "$work/console" 2>&1 < /dev/null || status=$?
cat "$work/out"
cat "$work/err" >&2
if ! [ -e "$work/begun" ]; then
	cat "$work/console" >&2
	cannot "the copy ended with $status before it ran anything; its output is above"
fi
exit $status
