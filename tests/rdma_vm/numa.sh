#!/usr/bin/env bash
# Where the memory of a node and of a client lies on a machine with two NUMA nodes, in the guest of run.sh: pages are counted by
# the kernel, and the node, its metrics, kvstorectl doctor and the client must say the same.
#
#   KV_RDMA_VM_NUMA=2 tests/rdma_vm/run.sh tests/rdma_vm/numa.sh KVSTORE_NODE KVSTORECTL NUMA_CLIENT KVSTORE_BENCH
set -Eeuo pipefail
# A command that fails outside of a check ends the script: by name, with the node's last words.
trap 'echo "FAILED: line $LINENO: $BASH_COMMAND (exit status $?)" >&2; [ ! -e "$log" ] || tail -n 20 "$log" >&2' ERR
node=$1 ctl=$2 client=$3 bench=$4
failed=0 pid='' rdma=off
pages=51200 huge_pages=100  # of 200 MiB
log=/tmp/numa-node.log seen=/tmp/numa-client.out
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
  "$node" --capacity 200MiB --listen tcp://127.0.0.1:7400 --admin "$address" --rdma "$rdma" "$@" > $log 2>&1 &
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
  local status=0
  kill "$pid" || status=gone
  wait "$pid" || status=$status,$?
  [ "$status" = 0 ] || { echo "FAILED: kvstore-node's end: $status"; tail -n 20 $log; failed=1; }
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

# ---- a client
# shellcheck disable=SC2317,SC2329  # these are called by check
{
  # worker NODES...: runs numa_client, whose output is in $seen
  worker() {
    echo "== numa_client $*"
    timeout 120 "$client" "$endpoint" "$@" > "$seen" || { echo "FAILED: numa_client $* ends with $?"; failed=1; }
    cat "$seen"
  }
  # has FIRST SECOND: pages of its memory on each node; 16384 in all
  has() {
    awk -v first="$1" -v second="$2" '$1 == "pages" { most = 164; found = $2 + $3 == 16384 && $2 - first <= most && first - $2 <= most &&
      (first > 0 || $2 == 0) && (second > 0 || $3 == 0) } END { exit !found }' "$seen"
  }
  # keeps LIST: each of the library's threads, the one that registers memory included
  keeps() {
    awk -v list="$1" -v least="$thread_count" '$1 == "threads" { found = NF > least; for (i = 2; i <= NF; ++i) found = found && $i == list }
      END { exit !found }' "$seen"
  }
  is_as_before() { awk '$1 == "caller" { same = $2 == $3 } END { exit !same }' "$seen"; }
  says() { grep -qE "$1" "$seen"; }
}
thread_count=1 endpoint=tcp://127.0.0.1:7400
# Over RDMA a client has a second thread, which registers memory.
if [ -n "${KV_VERBS_MODULE:-}" ]; then rdma=on thread_count=2; fi
start
worker -
check 'a client that is asked for nothing has threads on all processors' keeps "$all"
check 'and says so' says '^metrics kvstore_client_memory_numa_nodes 0$'
worker 1
check 'the memory of a client lies on the node that is named' has 0 16384
check 'its threads keep to the processors there' keeps "$second"
check 'its caller is as it was' is_as_before
check 'its metrics say so' says '^metrics kvstore_client_memory_numa_misplaced_ratio 0$'
check 'and its statistics' says '"numa":.*"nodes":2,"chosen":\[1\],.*"misplaced_ratio":0,"why_not":""'
worker 0
check 'the other node' has 16384 0
check 'and its processors' keeps "$first"
worker 0-1
check 'half of the pages on each' has 8192 8192
check 'and no processors in particular' keeps "$all"
for number in 0 1; do
  for device in /sys/bus/pci/devices/*; do
    if [ "$(cat "$device/device")" = 0x0005 ] && [ "$(cat "$device/numa_node")" = $number ]; then break; fi
    device=
  done
  check "the machine has a device at node $number" test -n "$device"
  worker "pci:${device##*/}"
  if [ $number = 0 ]; then
    check 'memory lies where a device is' has 16384 0
    check 'and threads run there' keeps "$first"
  else
    check 'memory lies where another device is' has 0 16384
    check 'and its threads run there' keeps "$second"
  fi
done
worker pci:0000:00:00.0
check 'a device whose place is not known places nothing' keeps "$all"
check 'and the client says why' says '"why_not":"this machine does not say at which NUMA node 0000:00:00.0 is'

export NUMA_CLIENT_IS_CONFINED=1
worker 1
unset NUMA_CLIENT_IS_CONFINED
check 'where a filter forbids to place memory, threads are at the node that is named' keeps "$second"
check 'and so is the memory that they touch first' has 0 16384
check 'and the client says what was refused' says '"misplaced_ratio":null,"why_not":"memory may not be placed'

hungry=$(awk '$3 == "MemFree:" { print int($4 / 1024) - 100 }' /sys/devices/system/node/node1/meminfo)
endpoint=unix:///nowhere worker 1 "$((hungry + 200))"  # with no node to register all of it
check 'a node that is full is passed over' test "$(awk '$1 == "pages" { print ($2 > 0) }' $seen)" = 1
check 'which the metric tells' says '^metrics kvstore_client_memory_numa_misplaced_ratio 0\.[0-9]'

"$bench" run --op put --numa-nodes 1 --endpoint "$endpoint" --block-bytes 64KiB --batch 4 --duration 8s > /tmp/bench.out 2>&1 &
bench_pid=$!
for _ in $(seq 100); do
  list=$(awk '$1 == "Cpus_allowed_list:" { print $2 }' /proc/$bench_pid/task/*/status 2> /dev/null | sort -u) || :
  if [ "$list" = "$second" ]; then break; fi
  sleep 0.1
done
check 'threads of kvstore-bench --numa-nodes keep to them' test "$list" = "$second"
kill "$bench_pid" || cat /tmp/bench.out
wait "$bench_pid" || :

refused=0
"$client" "$endpoint" 2 2> $log || refused=$?
check 'a client refuses a node that is not there' test "$refused" = 1
check 'by the name of the option, with those that are' grep -q "numa_nodes: '2'; node 2 is not there: this machine has memory on 0-1" $log
stop

refused=0
"$node" --numa-nodes 2 --check-config 2> $log || refused=$?
check 'a node that is not there is refused' test "$refused" = 2
check 'with those that are' grep -q 'memory on 0-1' $log
exit $failed
