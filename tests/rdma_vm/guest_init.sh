#!/bin/busybox sh
# The first and only process of the guest (run.sh boots it): loads modules, mounts the host's files, brings up the devices,
# runs the command, writes its status, switches off.
/bin/busybox --install -s /bin
export PATH=/bin
off() { sync; echo o > /proc/sysrq-trigger; sleep 60; }
die() { echo "rdma_vm: $*" > /dev/console; off; }
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module" || die "insmod $module failed"; done < /order

share() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2" || die "cannot mount $1 at $2"; }
share host /host ro,cache=loose
for directory in tmp run; do mount -t tmpfs tmpfs "/host/$directory" || die "no tmpfs on /$directory"; done
mkdir -p /host/run/rdma_vm
share control /host/run/rdma_vm rw,cache=none
directory=$(cat /host/run/rdma_vm/directory)
mkdir -p "/host$directory"
share work "/host$directory" rw,cache=mmap
mount -t proc proc /host/proc
mount -t sysfs sysfs /host/sys
mount -t devtmpfs dev /host/dev
mkdir -p /host/dev/shm /host/dev/pts
mount -t tmpfs tmpfs /host/dev/shm
mount -t devpts devpts /host/dev/pts
for link in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do ln -sf "/proc/self/${link#*:}" "/host/dev/${link%%:*}"; done

cat > /host/run/rdma_vm_network << 'NETWORK'
set -eu
ip link set lo up
sysctl -qw net.core.netdev_max_backlog=20000  # or a veth pair drops packets of large READs
interface() { ip link set "$1" mtu 4200 up; ip addr add "$2/24" dev "$1"; }
if [ "$1" = loop ]; then
  ip link add eth0 type dummy
  interface eth0 10.77.0.1
  rdma link add rxe0 type rxe netdev eth0
else
  # Two addresses of one host, and yet their packets cross the link: the local table is asked last, and only for what came
  # in over an interface.
  for scope in all default; do
    for setting in rp_filter=0 accept_local=1 arp_announce=2 arp_ignore=1; do sysctl -qw "net.ipv4.conf.$scope.$setting"; done
  done
  ip link add eth0 type veth peer name eth1
  interface eth0 10.77.0.1
  interface eth1 10.77.0.2
  table=100
  for ends in "eth0 10.77.0.1 10.77.0.2" "eth1 10.77.0.2 10.77.0.1"; do
    # shellcheck disable=SC2086
    set -- $ends
    table=$((table + 1))
    ip route add "$3" dev "$1" src "$2" table $table
    ip rule add pref $((table - 96)) from "$2" to "$3" iif lo lookup $table
    ip rule add pref $((table - 90)) iif "$1" lookup local
  done
  ip rule add pref 20 lookup local
  ip rule del pref 0
  rdma link add rxe0 type rxe netdev eth0
  rdma link add rxe1 type rxe netdev eth1
fi
NETWORK
cat > /host/run/rdma_vm_main << 'MAIN'
control=/run/rdma_vm
. $control/environment
ulimit -l unlimited
ulimit -c 0
cd "$(cat $control/directory)" || exit 125
bash $control/command < /dev/null > $control/out 2> $control/err
MAIN
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
/bin/chroot /host /bin/bash /run/rdma_vm_network "$(/bin/cat /host/run/rdma_vm/net)" > /dev/console 2>&1 ||
  { export PATH=/bin; die "the network did not come up"; }
/bin/busybox touch /host/run/rdma_vm/begun
/bin/chroot /host /bin/bash /run/rdma_vm_main
echo $? > /host/run/rdma_vm/status
export PATH=/bin
off
