#!/usr/bin/env bash
# A block's whole way by RDMA, from node to client and back, beside perftest on the same device: Soft-RoCE in one virtual machine
# (tests/rdma_vm/run.sh), in turns. Bandwidth of 2 MiB x 16 in MB/s (10^6); the median latency of one block of 64 KiB in us, beside
# ib_write_lat plus a round trip of the session's (match of one block, by SEND as the get is); processor time of the node in s a GB, beside TCP's.
# Prints each round, then the median of each, and the median, least and most of the rounds' ratios.
#
#   tests/bench/rdma_path.sh [ROUNDS]        default 5; needs perftest and a release build
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5}
if [ -z "${KV_RDMA_BENCH_INSIDE:-}" ]; then
  command -v ib_write_bw > /dev/null || { echo 'rdma_path.sh: perftest is not installed' >&2; exit 2; }
  KV_RDMA_BENCH_INSIDE=1 KV_RDMA_VM_MEMORY=4096 KV_VERBS_MODULE=$PWD/build/release/transport/ibverbs/libkvstore_verbs.so \
    exec tests/rdma_vm/run.sh --timeout 1500 tests/bench/rdma_path.sh "$rounds"
fi

node=tcp://127.0.0.1:7400
build/release/store/node/kvstore-node --rdma on --rdma-device rxe0 --capacity 512MiB --listen "$node" --admin none \
  --log-level warn &
trap 'kill %1' EXIT
until build/release/client/tools/kvstorectl ping --endpoint "$node" --count 1 > /dev/null 2>&1; do sleep 0.2; done

server=() client=()
# perftest TOOL ARGUMENT...: its last line of numbers
perftest() {
  local tool=$1
  shift
  "${server[@]}" timeout 60 "$tool" -d rxe0 -F "$@" > /dev/null 2>&1 &
  local pid=$!
  until ss -Hltn 'sport = :18515' | grep -q .; do sleep 0.1; done
  "${client[@]}" timeout 60 "$tool" -d rxe0 -F "$@" 10.77.0.1 2> /dev/null | awk '/^ *[0-9]+ +[0-9]+/ { line = $0 } END { print line }'
  wait "$pid" || :
}
latency() {
  local server=(taskset -c 0) client=(taskset -c 1)
  perftest ib_write_lat -s 65536 -n 1000 | awk '{ print $5 }'
}
bandwidth() { perftest "$1" -s 2097152 -t 16 -n $((96 / $2)) -q "$2" | awk '{ print $4 * 1.048576 }'; }
# bench FIELD ARGUMENT...: one figure of kvstore-bench
bench() {
  local field=$1
  shift
  build/release/client/tools/kvstore-bench run --endpoint "$node" --connections 1 --warm-up 500ms --json "$@" 2> /dev/null |
    awk -F '[:,]' -v field="\"$field\"" '$1 ~ field { print $2 + 0 }'
}
# A call in flight at the end does not count: 8 s are some forty calls.
large=(--block-bytes 2MiB --batch 16 --blocks 64 --memory 128MiB --duration 8s)
cpu() { # cpu OP TRANSPORT: of the node, s a GB
  local report
  report=$(build/release/client/tools/kvstore-bench run --endpoint "$node" --connections 1 --json --op "$1" \
    --transport "$2" "${large[@]}" 2> /dev/null)
  awk -F '[:,]' '/"bytes_per_second"/ { rate = $2 } /"node_cores"/ { cores = $2 } END { print cores / rate * 1e9 }' <<< "$report"
}
for _ in $(seq "$rounds"); do
  for lanes in 1 2; do
    verbs=(--transport verbs --rdma-lanes "$lanes" "${large[@]}")
    write=$(bandwidth ib_write_bw "$lanes") read=$(bandwidth ib_read_bw "$lanes")
    echo "get_over_$lanes MB/s $write $(bench bytes_per_second --op get "${verbs[@]}" | awk '{ print $1 / 1e6 }')"
    echo "get_unverified_over_$lanes MB/s $write $(bench bytes_per_second --op get --no-verify "${verbs[@]}" | awk '{ print $1 / 1e6 }')"
    echo "put_over_$lanes MB/s $read $(bench bytes_per_second --op put "${verbs[@]}" | awk '{ print $1 / 1e6 }')"
  done
  one=(--transport verbs --block-bytes 64KiB --batch 1 --blocks 256 --memory 16MiB --duration 3s)
  turn=$(bench p50_us --op match --transport verbs --block-bytes 64KiB --batch 1 --blocks 256 --duration 3s)
  echo "get_64KiB us $(latency | awk -v turn="$turn" '{ print $1 + turn }') $(bench p50_us --op get "${one[@]}")"
  for op in get put; do echo "cpu_$op s/GB $(cpu $op tcp) $(cpu $op verbs)"; done
done | awk '{ print $0, $4 / $3; fflush() }' | tee /tmp/results
# middle COLUMN: the median of that column of standard input
middle() { awk -v column="$1" '{ print $column }' | sort -g | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }
echo 'what unit other kvstore ratio least most'
cut -d ' ' -f 1,2 /tmp/results | sort -u | while read -r name unit; do
  rows=$(grep "^$name " /tmp/results)
  ratios=$(awk '{ print $5 }' <<< "$rows" | sort -g)
  echo "$name $unit $(middle 3 <<< "$rows") $(middle 4 <<< "$rows") $(middle 5 <<< "$rows")" \
    "$(head -n 1 <<< "$ratios") $(tail -n 1 <<< "$ratios")"
done
