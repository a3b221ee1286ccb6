#!/usr/bin/env bash
# Runs a command in a virtual machine that has Soft-RoCE devices (rdma_rxe), for tests of RDMA where there is no such card.
#
#   tests/rdma_vm/run.sh [--net loop|pair] [--timeout SECONDS] COMMAND [ARGUMENT...]
#   tests/rdma_vm/run.sh --check          says whether it can run here, and what is missing; boots nothing
#
# The guest is Debian's own kernel under QEMU, with KVM where the processor offers it and emulated otherwise. It sees this
# machine's files read-only and the current directory read-write at the same path; /tmp, /run and /dev/shm are its own. The
# command runs as root in the current directory, with this environment and no input.
#   loop   rxe0 at 10.77.0.1: both sides of a connection use it
#   pair   rxe0 at 10.77.0.1 and rxe1 at 10.77.0.2, the two ends of one link: cut it with `ip link set eth1 down`
#
# Exits with the command's status; 124 if time ran out, 125 if the guest gave no status, 126 if it cannot run here.
# The kernel (70 MB, by apt-get download) and the initrd are kept in KV_RDMA_VM_CACHE [~/.cache/kvstore-rdma-vm].
# KV_RDMA_VM_KERNEL names another image package, KV_RDMA_VM_MEMORY the guest's MiB [3072], KV_RDMA_VM_CPUS its processors
# [as many as here], KV_RDMA_VM_NUMA its NUMA nodes [1], which share both evenly and have a PCI device each.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${KV_RDMA_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvstore-rdma-vm}
net=loop limit=600 check=no

cannot() { printf 'rdma_vm: %s\n' "$*" >&2; exit 126; }

while [ $# -gt 0 ]; do
  case $1 in
    --net) net=$2; shift 2 ;;
    --timeout) limit=$2; shift 2 ;;
    --check) check=yes; shift ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --) shift; break ;;
    -*) cannot "unknown option '$1' (see --help)" ;;
    *) break ;;
  esac
done
case $net in loop | pair) ;; *) cannot "--net: '$net', allowed are loop and pair" ;; esac
[ "$check" = yes ] || [ $# -gt 0 ] || cannot "no command (see --help)"

# ---- what is needed on this machine
[ "$(uname -m)" = x86_64 ] || cannot "this machine is $(uname -m), the guest is x86_64"
lacking=()
need() { command -v "$1" > /dev/null || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || lacking+=("$2"); }
need qemu-system-x86_64 qemu-system-x86
need busybox busybox-static
need cpio cpio
need modprobe kmod
need ip iproute2
need rdma iproute2
[ -e /etc/libibverbs.d/rxe.driver ] || lacking+=(ibverbs-providers)
[ ${#lacking[@]} -eq 0 ] || cannot "not installed: ${lacking[*]} (deploy/install-dependencies.sh --rdma)"
PATH=$PATH:/usr/sbin:/sbin

mkdir -p "$cache"
exec 9> "$cache/lock"
flock 9
package=${KV_RDMA_VM_KERNEL:-}
if [ -z "$package" ]; then
  package=$(apt-cache depends linux-image-amd64 2> /dev/null | awk '/Depends: linux-image-/ { print $2; exit }')
  # Without package lists, what was fetched before will do.
  [ -n "$package" ] || package=$(cd "$cache" && find . -maxdepth 1 -name 'linux-image-*' -type d -printf '%f\n' | sort -V | tail -n 1)
  [ -n "$package" ] || cannot "apt knows no package linux-image-amd64 (run apt-get update)"
fi
version=${package#linux-image-}
tree=$cache/$package
if [ ! -e "$tree/boot/vmlinuz-$version" ]; then
  [ "$check" = no ] || { apt-cache show "$package" > /dev/null 2>&1 || cannot "apt cannot get $package"; echo "rdma_vm: ready, will fetch $package"; exit 0; }
  fetched=$(mktemp -d "$cache/fetch.XXXXXX")
  (cd "$fetched" && apt-get -q download "$package") > "$fetched/log" 2>&1 || { tail -n 3 "$fetched/log" >&2; rm -rf "$fetched"; cannot "apt-get download $package failed"; }
  dpkg -x "$fetched"/*.deb "$fetched/tree"
  depmod -b "$fetched/tree" "$version"
  rm -rf "$tree"
  mv "$fetched/tree" "$tree"
  rm -rf "$fetched"
fi
[ "$check" = no ] || { echo "rdma_vm: ready, $package"; exit 0; }

# ---- the initrd: busybox, modules in loading order, guest_init.sh
# rdma_rxe asks for "crc32" by name, so that no dependency names crc32_generic.
initrd=$tree/initrd-$(cat "$here/run.sh" "$here/guest_init.sh" | sha256sum | cut -c 1-16)
if [ ! -e "$initrd" ]; then
  rm -f "$tree"/initrd-*
  root=$(mktemp -d "$cache/initrd.XXXXXX")
  mkdir -p "$root"/{bin,proc,sys,dev,modules,host}
  cp "$(command -v busybox)" "$root/bin/busybox"
  cp "$here/guest_init.sh" "$root/init"
  for module in virtio_pci 9pnet_virtio 9p crc32_generic rdma_rxe ib_uverbs dummy veth; do
    modprobe -d "$tree" -S "$version" --show-depends "$module"
  done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' > "$root/order.host"
  while read -r file; do
    name=$(basename "$file")
    case $name in
      *.xz) xz -dc "$file" > "$root/modules/${name%.xz}" ;;
      *.zst) zstd -qdc "$file" > "$root/modules/${name%.zst}" ;;
      *) cp "$file" "$root/modules/$name" ;;
    esac
    name=${name%.xz}
    echo "${name%.zst}" >> "$root/order"
  done < "$root/order.host"
  (cd "$root" && find . | cpio -o -H newc --quiet) > "$initrd.new"
  mv "$initrd.new" "$initrd"
  rm -rf "$root"
fi
exec 9>&-

# ---- one run
run=$(mktemp -d "$cache/run.XXXXXX")
qemu=
trap '[ -z "$qemu" ] || kill "$qemu" 2> /dev/null || :; rm -rf "$run"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
mkdir "$run/control"
printf '%q ' "$@" > "$run/control/command"
export -p > "$run/control/environment"
pwd > "$run/control/directory"
echo "$net" > "$run/control/net"
: > "$run/control/out"
: > "$run/control/err"

if [ -w /dev/kvm ] && grep -qwE 'svm|vmx' /proc/cpuinfo; then
  machine=(-accel kvm -cpu host)
else
  # Emulated: string instructions are carried out byte by byte, so the kernel is kept from using them (rep_good too).
  machine=(-accel tcg,thread=multi -cpu "max,-erms,-fsrm,-la57")
fi
share() { shares+=(-fsdev "local,id=$1,path=$2,security_model=none,multidevs=remap$3" -device "virtio-9p-pci,fsdev=$1,mount_tag=$1"); }
shares=()
share host / ,readonly=on
share control "$run/control" ""
share work "$PWD" ""

cpus=${KV_RDMA_VM_CPUS:-$(nproc)} memory=${KV_RDMA_VM_MEMORY:-3072} nodes=${KV_RDMA_VM_NUMA:-1} numa=()
if [ "$nodes" -gt 1 ]; then
  each=$(((cpus + nodes - 1) / nodes)) part=$((memory / nodes))
  cpus=$((each * nodes)) memory=$((part * nodes))
  for ((i = 0; i < nodes; ++i)); do
    numa+=(-object "memory-backend-ram,id=memory$i,size=${part}M"
      -numa "node,nodeid=$i,memdev=memory$i,cpus=$((i * each))-$((i * each + each - 1))")
    # A PCI device at the node. Behind the shares: what names no bus would be put on the last one.
    shares+=(-device "pxb,id=bridge$i,bus=pci.0,bus_nr=$((64 + 16 * i)),numa_node=$i" -device "pci-testdev,bus=bridge$i,addr=1")
  done
fi

# boot: one machine, from power on to off; its status is in $status
boot() {
  # setpriv: QEMU ends with this script, however that ends.
  setpriv --pdeathsig KILL timeout --signal KILL "$limit" setpriv --pdeathsig KILL \
    qemu-system-x86_64 -M pc "${machine[@]}" -smp "$cpus" -m "$memory" "${numa[@]}" -nodefaults -no-user-config \
    -display none -no-reboot -kernel "$tree/boot/vmlinuz-$version" -initrd "$initrd" -serial "file:$run/console" \
    -append 'console=ttyS0 quiet panic=-1 mitigations=off clearcpuid=rep_good tsc=reliable' \
    "${shares[@]}" < /dev/null > "$run/qemu" 2>&1 &
  qemu=$!
  tail -q -s 0.2 -c +1 -f --pid="$qemu" "$run/control/out" &
  tail_out=$!
  tail -q -s 0.2 -c +1 -f --pid="$qemu" "$run/control/err" >&2 &
  tail_err=$!
  status=0
  wait "$qemu" || status=$?
  qemu=
  wait "$tail_out" "$tail_err" || :
}
boot
# An emulated machine that dies before the command says nothing of the command.
if [ ! -e "$run/control/begun" ] && [ "$status" != 137 ]; then
  tail -n 20 "$run/qemu" "$run/console" >&2 || :
  echo "rdma_vm: the guest ended before the command began (QEMU ended with $status): another one is booted" >&2
  boot
fi
if [ -s "$run/control/status" ]; then exit "$(cat "$run/control/status")"; fi
tail -n 20 "$run/qemu" "$run/console" >&2 || :
if [ "$status" = 137 ]; then
  echo "rdma_vm: time ran out after $limit s" >&2
  exit 124
fi
echo "rdma_vm: the guest gave no status (QEMU ended with $status); its console is above" >&2
exit 125
