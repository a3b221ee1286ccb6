#!/usr/bin/env bash
# What a disk tier costs those who get from memory: the p99 of a get while another client puts KV_PUTS (20) times 32 MiB
# a second, with the node spilling what it evicts, and with a node that has no disk and evicts.
#
#   tests/bench/spill_p99.sh DIRECTORY [BUILD_DIR]     a directory on the device; KV_ROUNDS=5, KV_SECONDS=5
#
# Run it on a quiet machine. Prints p50 and p99 of each round, and the medians and their ratio.
set -euo pipefail
case ${1:-} in -h | --help | '') sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
directory=$1 build=${2:-build/release}
rounds=${KV_ROUNDS:-5} seconds=${KV_SECONDS:-5} puts=${KV_PUTS:-20}
node=$build/store/node/kvstore-node
bench=$build/client/tools/kvstore-bench

scratch=$(mktemp -d)
spill=$(mktemp -d "$directory/kvstore-p99-XXXXXX")
pids=()
clean_up() {
  for pid in "${pids[@]}"; do kill -9 "$pid" 2> /dev/null || true; done
  rm -rf "$scratch" "$spill"
}
trap clean_up EXIT

# start NAME OPTION...: a node with a Unix socket at $scratch/NAME
start() {
  local name=$1
  shift
  "$node" --listen "unix://$scratch/$name" --admin none --capacity 1GiB "$@" > "$scratch/$name.log" 2>&1 &
  pids+=($!)
  until grep -q ' ready ' "$scratch/$name.log"; do
    kill -0 $! 2> /dev/null || { cat "$scratch/$name.log" >&2; exit 1; }
    sleep 0.1
  done
}
start memory
start disk --disk-path "$spill" --disk-capacity 8GiB

# number KEY FILE: the number under that key of a JSON document
number() { awk -v key="\"$1\":" '$1 == key { printf "%.0f\n", $2; exit }' "$2"; }

# one NODE: p50 and p99 in microseconds of gets of 4 x 64 KiB that are in memory, while 2 MiB blocks are put
one() {
  "$bench" run --op put -e "unix://$scratch/$1" --rate "$puts" --duration $((seconds + 3))s --salt "$RANDOM" --json > "$scratch/put.json" &
  local putting=$!
  sleep 1
  "$bench" run --op get -e "unix://$scratch/$1" --block-bytes 64KiB --batch 4 --blocks 256 --rate 1000 --duration "${seconds}s" --json > "$scratch/get.json"
  wait "$putting"
  echo "$(number p50_us "$scratch/get.json") $(number p99_us "$scratch/get.json") $(number bytes_per_second "$scratch/put.json")"
}
for round in $(seq "$rounds"); do
  for name in memory disk; do
    read -r p50 p99 put < <(one "$name")
    printf 'round %d  %-6s  get p50 %8.1f us  p99 %8.1f us  puts %5d MB/s\n' "$round" "$name" "$p50" "$p99" "$((${put%.*} / 1000000))"
    echo "$p99" >> "$scratch/$name.p99"
  done
done
median() { sort -n "$1" | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }
awk -v memory="$(median "$scratch/memory.p99")" -v disk="$(median "$scratch/disk.p99")" \
  'BEGIN { printf "p99 median: %.1f us without a disk, %.1f us spilling, ratio %.2f\n", memory, disk, disk / memory }'
