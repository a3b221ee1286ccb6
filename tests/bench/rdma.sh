#!/usr/bin/env bash
# The mover beside perftest's bandwidths, in turns, on Soft-RoCE in one virtual machine (tests/rdma_vm/run.sh). Prints each
# run in MB/s (10^6) or us, and the median of each. Not ib_write_lat: its two sides poll, and with two emulated processors
# that measures whose turn it is.
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
# perftest TOOL ARGUMENT...: its last line of numbers
perftest() {
  local tool=$1
  shift
  "$tool" -d rxe0 -F "$@" > /dev/null 2>&1 &
  sleep 1
  "$tool" -d rxe0 -F "$@" 10.77.0.1 2> /dev/null | awk '/^ *[0-9]+ +[0-9]+/ { line = $0 } END { print line }'
  wait
}
ours() {
  build/release/tests/bench/kv_bench_verbs_mover --benchmark_filter="^$1/" --benchmark_min_time=1 --benchmark_format=csv 2> /dev/null |
    tail -n 1
}
for _ in $(seq "$rounds"); do
  for kind in write:BM_Get read:BM_Put; do
    perftest "ib_${kind%%:*}_bw" -s 2097152 -n 96 -t 16 | awk -v name="ib_${kind%%:*}_bw" '{ print name, $4 * 1.048576 }'
    ours "${kind##*:}" | awk -F, -v name="mover_${kind##*:}" '{ print name, $6 / 1e6 }'
  done
  ours BM_GetOne64KiB | awk -F, '{ print "mover_get_64KiB_mean_us", $3 }'
done | tee "$results"
echo 'median of each:'
cut -d ' ' -f 1 "$results" | sort -u | while read -r name; do
  awk -v name="$name" '$1 == name { print $2 }' "$results" | sort -g | awk -v name="$name" '{ all[NR] = $1 } END { print "  " name, all[int((NR + 1) / 2)] }'
done
