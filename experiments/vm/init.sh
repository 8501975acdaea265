#!/bin/busybox sh
# The first program of the machine of run.sh. It makes a root directory of this machine's files, and leaves
# the rest to session.sh, in that root.
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /new /run
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "$module"; done < /job/modules
. /job/settings

# Overlayfs over 9p: this machine's files are only read, and what is written stays in memory. A file system
# for /run holds both, because switch_root removes the files that are here.
mount -t tmpfs run /run
mkdir -p /run/host /run/changes /run/work /run/vm
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=524288,cache=loose host /run/host
mount -t overlay -o lowerdir=/run/host,upperdir=/run/changes,workdir=/run/work root /new
cp /bin/busybox /job/* /run/vm/
mkdir -p /new/run /new/proc /new/sys /new/dev
for dir in proc sys dev run; do mount --move /$dir /new/$dir; done
exec switch_root /new /run/vm/busybox sh /run/vm/session.sh
