#!/usr/bin/env bash
# The mover beside perftest, in turns, on Soft-RoCE in one virtual machine (tests/rdma_vm/run.sh): bandwidth over one and two
# queue pairs, in MB/s (10^6), and the latency of 64 KiB, in us at the median. Prints each round, then the median of each, the
# median, least and most of the rounds' ratios, and the best round of each side: all that means much on a busy machine.
#
# The two sides of ib_write_lat poll without end, and ib_write_lat knows no events. Left to the guest's scheduler they end up on
# one processor now and then and wait for each other's time slices (4 ms): each is bound to a processor of its own. When the
# host is busy the same happens there, and only the best round is of use.
#
#   tests/bench/rdma.sh [ROUNDS]        default 5; needs perftest and a release build of kv_bench_verbs_mover, kvstore_verbs
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5}
if [ -z "${KV_RDMA_BENCH_INSIDE:-}" ]; then
  command -v ib_write_bw > /dev/null || { echo 'rdma.sh: perftest is not installed' >&2; exit 2; }
  KV_RDMA_BENCH_INSIDE=1 KV_VERBS_TEST_DEVICES=rxe0,rxe0 \
    KV_VERBS_MODULE=$PWD/build/release/transport/ibverbs/libkvstore_verbs.so \
    exec tests/rdma_vm/run.sh --timeout 900 tests/bench/rdma.sh "$rounds"
fi

results=$(mktemp)
server=() client=()
# perftest TOOL ARGUMENT...: its last line of numbers
perftest() {
  local tool=$1
  shift
  "${server[@]}" timeout 60 "$tool" -d rxe0 -F "$@" > /dev/null 2>&1 &
  until ss -Hltn 'sport = :18515' | grep -q .; do sleep 0.1; done
  "${client[@]}" timeout 60 "$tool" -d rxe0 -F "$@" 10.77.0.1 2> /dev/null | awk '/^ *[0-9]+ +[0-9]+/ { line = $0 } END { print line }'
  wait
}
latency() {
  local server=(taskset -c 0) client=(taskset -c 1)
  perftest ib_write_lat -s 65536 -n 1000 | awk '{ print $5 }'
}
bandwidth() { perftest "$1" -s 2097152 -t 16 -n $((96 / $2)) -q "$2" | awk '{ print $4 * 1.048576 }'; }
# ours NAME: name,iterations,real_time,cpu_time,unit,bytes_per_second,items_per_second,label,error,message,p50_us
ours() {
  build/release/tests/bench/kv_bench_verbs_mover --benchmark_filter="^$1/" --benchmark_min_time=1 --benchmark_format=csv 2> /dev/null |
    tail -n 1
}
for _ in $(seq "$rounds"); do
  for pairs in 1 2; do
    echo "get_over_$pairs MB/s $(bandwidth ib_write_bw "$pairs") $(ours "BM_Get/pairs:$pairs" | awk -F, '{ print $6 / 1e6 }')"
    echo "put_over_$pairs MB/s $(bandwidth ib_read_bw "$pairs") $(ours "BM_Put/pairs:$pairs" | awk -F, '{ print $6 / 1e6 }')"
  done
  echo "get_64KiB us $(latency) $(ours BM_GetOne64KiB | awk -F, '{ print $NF }')"
done | awk '{ print $0, $4 / $3; fflush() }' | tee "$results"
# middle COLUMN: the median of that column of standard input
middle() { awk -v column="$1" '{ print $column }' | sort -g | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }
echo 'what unit perftest mover ratio least most best_perftest best_mover'
cut -d ' ' -f 1,2 "$results" | sort -u | while read -r name unit; do
  rows=$(grep "^$name " "$results")
  ratios=$(awk '{ print $5 }' <<< "$rows" | sort -g)
  best=\$p  # of a sorted list
  [ "$unit" = MB/s ] || best=1p
  echo "$name $unit $(middle 3 <<< "$rows") $(middle 4 <<< "$rows") $(middle 5 <<< "$rows")" \
    "$(head -n 1 <<< "$ratios") $(tail -n 1 <<< "$ratios")" \
    "$(cut -d ' ' -f 3 <<< "$rows" | sort -g | sed -n "$best") $(cut -d ' ' -f 4 <<< "$rows" | sort -g | sed -n "$best")"
done
