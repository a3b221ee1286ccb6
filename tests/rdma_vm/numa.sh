#!/usr/bin/env bash
# Where a node's memory lies on a machine with two NUMA nodes, in the guest of run.sh: pages are counted by the kernel, and the
# node, its metrics and kvstorectl doctor must say the same.
#
#   KV_RDMA_VM_NUMA=2 tests/rdma_vm/run.sh tests/rdma_vm/numa.sh KVSTORE_NODE KVSTORECTL
set -euo pipefail
node=$1 ctl=$2
failed=0 pid=''
pages=51200 huge_pages=100  # of 200 MiB
log=/tmp/numa-node.log
address=127.0.0.1:7401

check() {  # NAME CONDITION...
  local name=$1
  shift
  if "$@"; then
    echo "passed: $name"
  else
    echo "FAILED: $name"
    failed=1
  fi
}
get() {
  exec 3<> "/dev/tcp/${address/://}"
  printf 'GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$1" "$address" >&3
  cat <&3
  exec 3>&-
}
# shellcheck disable=SC2317,SC2329  # these are called by check
{
  # lies FIRST SECOND: pages of the arena on each node, by the kernel; one in a hundred may have lost its turn to others
  lies() {
    local line on
    line=$(grep kvstore-arena "/proc/$pid/numa_maps")
    on=$(for i in 0 1; do sed -nE "s/.* N$i=([0-9]+).*/\1/p; t; s/.*/0/p" <<< "$line"; done | paste -sd ' ')
    echo "pages on the nodes: $on"
    awk -v first="$1" -v second="$2" '{ most = (first + second) / 100
      exit !($1 + $2 == first + second && $1 - first <= most && first - $1 <= most && (first > 0 || $1 == 0)) }' <<< "$on"
  }
  # tells NAME LEAST MOST: the metric is between them
  tells() {
    local value
    value=$(get /metrics | awk -v name="kvstore_$1" '$1 == name { print $2 }' | tr -d '\r')
    echo "$1 = $value"
    awk -v value="$value" -v least="$2" -v most="$3" 'BEGIN { exit !(value != "" && value >= least && value <= most) }'
  }
  runs_on() { [ "$(awk '$1 == "Cpus_allowed_list:" { print $2 }' "/proc/$pid/status")" = "$1" ]; }
  doctor_says() { "$ctl" doctor --endpoint tcp://127.0.0.1:7400 --admin "$address" | grep -E -A 1 ' NUMA ' | grep -E "$1"; }
}
start() {
  echo "== kvstore-node $*"
  "$node" --capacity 200MiB --listen tcp://127.0.0.1:7400 --admin "$address" --rdma off "$@" > $log 2>&1 &
  pid=$!
  for _ in $(seq 300); do
    if grep -q ' ready ' $log; then return; fi
    sleep 0.2
  done
  cat $log
  echo "FAILED: it does not start"
  exit 1
}
stop() {
  kill "$pid"
  wait "$pid" || :
}

first=$(cat /sys/devices/system/node/node0/cpulist) second=$(cat /sys/devices/system/node/node1/cpulist)
all=$(cat /sys/devices/system/cpu/online)
start
check 'by itself, half of the pages lie on each node' lies $((pages / 2)) $((pages / 2))
check 'the metric of the sample agrees' tells arena_numa_largest_ratio 0.45 0.6
check 'threads run on all processors' runs_on "$all"
check 'doctor is content' doctor_says '^ok '
stop

start --numa-nodes 1 --capacity-max 400MiB
check 'all pages lie on the node that is named' lies 0 $pages
check 'threads keep to its processors' runs_on "$second"
"$ctl" config set capacity=400MiB --admin "$address"
for _ in $(seq 100); do
  if get /metrics | grep -qE '^kvstore_capacity_bytes 4194304[0-9]{2}'; then break; fi
  sleep 0.2
done
check 'so do those that come later' lies 0 $((2 * pages))
stop

start --numa-nodes 0
check 'the other node' lies $pages 0
check 'and its processors' runs_on "$first"
stop

start --numa-nodes off
check 'off chooses none' tells arena_numa_nodes 0 0
check 'and keeps to none' runs_on "$all"
stop

echo $((huge_pages + 20)) > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages
echo 60 > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages
start
check 'huge pages take turns too' lies $((huge_pages / 2)) $((huge_pages / 2))
check 'as the sample sees them' tells arena_numa_largest_ratio 0.45 0.6
stop
start --numa-nodes 1
check 'a node without enough of them is passed over' lies 40 60
check 'which the metric tells' tells arena_numa_misplaced_ratio 0.3 0.5
check 'and doctor' doctor_says 'had no room left'
stop

refused=0
"$node" --numa-nodes 2 --check-config 2> $log || refused=$?
check 'a node that is not there is refused' test "$refused" = 2
check 'with those that are' grep -q 'memory on 0-1' $log
exit $failed
