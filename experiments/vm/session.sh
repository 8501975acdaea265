# The second program of the machine of run.sh. It prepares the machine as systemd would, runs the command,
# reports its exit status and ends.
b=/run/vm/busybox
. /run/vm/settings
for dir in /sys/class/virtio-ports/*; do
	read -r name < "$dir/name"
	eval "port_$name=/dev/${dir##*/}"
done
exec < /dev/null > "$port_out" 2> "$port_err"

$b mkdir -p /dev/pts /dev/shm /disk "/lib/modules/$($b uname -r)"
$b mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
$b mount -t tmpfs shm /dev/shm
$b mount -t cgroup2 -o nsdelegate,memory_recursiveprot cgroup2 /sys/fs/cgroup
$b mount -t bpf bpf /sys/fs/bpf
$b mount -t tracefs tracefs /sys/kernel/tracing
$b mount -t debugfs debugfs /sys/kernel/debug
$b mount -o bind "$modules/$($b uname -r)" "/lib/modules/$($b uname -r)"
$b mount -t ext4 /dev/vda /disk
$b chmod 1777 /disk
if [ "$swap" != 0 ]; then
	$b mkswap /dev/vdb > /dev/null
	$b swapon /dev/vdb
fi
$b ifconfig lo 127.0.0.1 up
$b hostname vm

# Where systemd would put a session.
group=/sys/fs/cgroup/user.slice
echo '+cpu +io +memory +pids' > /sys/fs/cgroup/cgroup.subtree_control
$b mkdir -p $group/session.scope
echo '+cpu +memory +pids' > $group/cgroup.subtree_control

(
	echo 0 > $group/session.scope/cgroup.procs
	export TMPDIR=/disk
	exec $b setsid $b sh /run/vm/command
)
status=$?
$b sync
echo $status > "$port_status"
exec $b reboot -f
