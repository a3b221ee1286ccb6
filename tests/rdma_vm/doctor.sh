#!/usr/bin/env bash
# kvstorectl doctor on Soft-RoCE, in the guest of run.sh: on a device that is whole, then on one that is broken in one way
# after another. Each time the exit status and the remedy must be right.
#
#   tests/rdma_vm/run.sh tests/rdma_vm/doctor.sh KVSTORECTL           with KV_VERBS_MODULE in the environment
set -euo pipefail
ctl=$1
failed=0

# expect STATUS TEXT NAME [PREFIX...]: what doctor ends with and says, run behind PREFIX; `options` are doctor's own
options=()
expect() {
  local status=0 said wanted=$1 text=$2 name=$3
  shift 3
  said=$("$@" "$ctl" doctor --rdma "${options[@]}" 2>&1) || status=$?
  printf '\n%s\n' "$said"
  if [ "$status" = "$wanted" ] && grep -qF -- "$text" <<< "$said"; then
    echo "passed: $name"
  else
    echo "FAILED: $name (exit status $status, wanted are $wanted and '$text')"
    failed=1
  fi
}
# shellcheck disable=SC2317  # called by expect
as_nobody() { setpriv --reuid nobody --clear-groups --inh-caps=-all "$@"; }
# shellcheck disable=SC2317
with_memlock() { (ulimit -l "$1" && shift && as_nobody "$@"); }

expect 0 'every byte right' 'a device that is whole moves every byte'
expect 0 '::ffff:10.77.0.1, RoCE v2, used' 'the IPv4 address is chosen'

ip addr add 10.77.0.9/24 dev eth0
options=(--rdma-device rxe0@10.77.0.9)
expect 0 '::ffff:10.77.0.9, RoCE v2, used' 'an address that is asked for'
ip addr del 10.77.0.9/24 dev eth0
expect 1 '10.77.0.9, not one of this port' 'an address that is asked for and not there'
options=()

ip link set eth0 mtu 1500
expect 0 'ip link set eth0 mtu 4200' 'a small MTU is a warning'
ip link set eth0 mtu 4200

expect 0 'LimitMEMLOCK=infinity' 'a limit on locked memory is a warning' with_memlock 8192
expect 1 'registering memory, 1 MiB: Cannot allocate memory' 'a limit that is too low fails the transfer' with_memlock 512

chmod 600 /dev/infiniband/uverbs0
expect 1 'udev' 'a device without the right to it' as_nobody
chmod 666 /dev/infiniband/uverbs0
mv /dev/infiniband/uverbs0 /dev/uverbs0
expect 1 '--device /dev/infiniband' 'a container without the device'
mv /dev/uverbs0 /dev/infiniband/uverbs0

mount -t tmpfs none /etc/libibverbs.d
expect 1 'ibverbs-providers' "libibverbs without the device's driver"
umount /etc/libibverbs.d

ip addr flush dev eth0
expect 1 'is it still on eth0' 'an address that is gone'
ip addr add 10.77.0.1/24 dev eth0
ip link set eth0 down
expect 1 'ip link set eth0 up' 'a link that is down'
ip link set eth0 up

rdma link del rxe0
expect 1 'rdma link add rxe0' 'no device'
KV_VERBS_MODULE=/no/such/module.so expect 1 "install kvstore's module" 'no module'
mount --bind /dev/null "$(ldconfig -p | awk '$1 == "libibverbs.so.1" { print $NF; exit }')"
expect 1 'install rdma-core' 'no libibverbs'
exit $failed
