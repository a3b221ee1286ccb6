#!/usr/bin/env bash
# Fills the table of docs/performance.md: each of our figures next to what the bare machine does in the same seconds.
#
#   tests/bench/measure.sh [BUILD_DIR]          default build/release; KV_ROUNDS=5 rounds, KV_SECONDS=2 for each figure
#   KV_ROWS='shm|put' tests/bench/measure.sh    only rows whose name matches
#
# Run it on a quiet machine: it says how busy the machine was besides. Starts nodes of its own on Unix sockets and free
# ports. Every round measures limit and kvstore back to back, row by row; shown are medians of the figures and of the
# ratios, with the least and the most ratio.
set -euo pipefail
cd "$(dirname "$0")/../.."
case ${1:-} in -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
build=${1:-build/release}
rounds=${KV_ROUNDS:-5} seconds=${KV_SECONDS:-2} rows=${KV_ROWS:-.}
node=$build/store/node/kvstore-node
bench=$build/client/tools/kvstore-bench
for program in "$node" "$bench"; do
  [ -x "$program" ] || { echo "measure.sh: no $program; build it: cmake --preset release && cmake --build --preset release" >&2; exit 1; }
done

scratch=$(mktemp -d)
pids=()
clean_up() {
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
  rm -rf "$scratch"
}
trap clean_up EXIT

# start NAME OPTION...: a node with a Unix socket at $scratch/NAME; its TCP endpoint goes to $scratch/NAME.tcp
start() {
  local name=$1
  shift
  "$node" --listen tcp://127.0.0.1:0 --listen "unix://$scratch/$name" --admin none "$@" > "$scratch/$name.log" 2>&1 &
  pids+=($!)
  until grep -q ' ready ' "$scratch/$name.log" 2> /dev/null; do
    kill -0 $! 2> /dev/null || { cat "$scratch/$name.log" >&2; exit 1; }
    sleep 0.1
  done
  grep -o 'tcp://[0-9.:]*' "$scratch/$name.log" | head -n 1 > "$scratch/$name.tcp"
}
# Under lru a node takes each block. The default policy may refuse the blocks of a row because those of earlier rows are worth more.
start plain --capacity 2GiB --eviction-policy lru
start busy --capacity 1GiB --eviction-policy lru --busy-poll-us 50 --threads 1

# number KEY: the first number under that key of the JSON document on stdin; of an object, its median
number() {
  awk -v key="\"$1\":" '
    $1 == key && $2 !~ /\{/ { print $2 + 0; exit }
    $1 == key { inside = 1; next }
    inside && $1 == "\"median\":" { print $2 + 0; exit }'
}

# limit CASE FIELD [OPTION...]; ours FIELD OPTION...
limit() {
  local name=$1 field=$2
  shift 2
  "$bench" limit --only "$name" --rounds 1 --duration "${seconds}s" --json "$@" | number "$field"
}
ours() {
  local field=$1
  shift
  "$bench" run --duration "${seconds}s" --json "$@" > "$scratch/last.json"
  number "$field" < "$scratch/last.json"
}

plain_unix=unix://$scratch/plain plain_tcp=$(cat "$scratch/plain.tcp") busy_unix=unix://$scratch/busy busy_tcp=$(cat "$scratch/busy.tcp")
small="--block-bytes 4KiB --batch 1"
match="--op match --block-bytes 4KiB --batch 256 --connections 1"

# row NAME UNIT DIVISOR LIMIT_VALUE OUR_VALUE: keeps one measurement
row() {
  if [ -z "$4" ] || [ -z "$5" ]; then
    echo "measure.sh: no figure for '$1' this round" >&2
    return 0
  fi
  printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" "$5" >> "$scratch/results"
}
wanted() { [[ $1 =~ $rows ]]; }

measure_round() {
  local name
  for connections in 1 4; do
    name="get 2 MiB x 16, TCP, $connections connection(s)"
    wanted "$name" && row "$name" GB/s 1e9 "$(limit "tcp_stream_$connections" bytes_per_second --connections "$connections")" \
      "$(ours bytes_per_second --op get --endpoint "$plain_tcp" --threads "$connections" --connections 1)"
  done
  name="get 2 MiB x 16, shm, not verified"
  wanted "$name" && row "$name" GB/s 1e9 "$(limit memcpy bytes_per_second)" \
    "$(ours bytes_per_second --op get --endpoint "$plain_unix" --transport shm --no-verify)"
  name="get 2 MiB x 16, shm, verified"
  wanted "$name" && row "$name" GB/s 1e9 "$(limit memcpy bytes_per_second)" \
    "$(ours bytes_per_second --op get --endpoint "$plain_unix" --transport shm)"
  name="put 2 MiB x 16, shm, verified"
  wanted "$name" && row "$name" GB/s 1e9 "$(limit memcpy bytes_per_second)" \
    "$(ours bytes_per_second --op put --endpoint "$plain_unix" --transport shm)"
  name="get 4 KiB, TCP, one at a time, p50"
  wanted "$name" && row "$name" us 1 "$(limit tcp_ping_4k_answer p50_us)" \
    "$(ours p50_us --op get --endpoint "$plain_tcp" $small --connections 1)"
  name="match 256, Unix, p50"
  wanted "$name" && row "$name" us 1 "$(limit unix_ping_8k_request p50_us)" \
    "$(ours p50_us --endpoint "$plain_unix" --transport unix $match)"
  name="get 4 KiB, TCP, busy polling, p50"
  wanted "$name" && row "$name" us 1 "$(limit tcp_ping_4k_answer_spin p50_us)" \
    "$(ours p50_us --op get --endpoint "$busy_tcp" $small --connections 1 --busy-poll-us 50)"
  name="match 256, Unix, busy polling, p50"
  wanted "$name" && row "$name" us 1 "$(limit unix_ping_8k_request_spin p50_us)" \
    "$(ours p50_us --endpoint "$busy_unix" --transport unix $match --busy-poll-us 50)"
  name="get 4 KiB, TCP, 64 in flight on 16 connections"
  if wanted "$name"; then
    local raw rate cores
    raw=$(limit tcp_pipelined_4k calls_per_second)
    rate=$(ours calls_per_second --op get --endpoint "$plain_tcp" $small --connections 16 --concurrency 64)
    cores=$(number node_cores < "$scratch/last.json")
    row "$name" k/s 1e3 "$raw" "$rate"
    row "  the same, per core of the node" k/s 1e3 "$raw" "$(awk -v r="$rate" -v c="$cores" 'BEGIN { print r / c }')"
  fi
  return 0
}

for round in $(seq "$rounds"); do
  [ -t 2 ] && printf '\rround %d of %d' "$round" "$rounds" >&2
  measure_round
done
[ -t 2 ] && printf '\r\033[K' >&2

printf '%s, %s cores, load %s\n%d rounds of %s s for each figure; medians\n\n' "$(awk -F': ' '/model name/ { print $2; exit }' /proc/cpuinfo)" \
  "$(nproc)" "$(cut -d' ' -f1-3 /proc/loadavg)" "$rounds" "$seconds"
printf '| %-46s | %-5s | %8s | %8s | %6s | %-13s |\n| --- | --- | ---: | ---: | ---: | --- |\n' what unit machine kvstore ratio '(least-most)'
awk -F'\t' '
  function median(list, n,   i, j, t) {
    for (i = 2; i <= n; ++i) for (j = i; j > 1 && list[j - 1] > list[j]; --j) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
    least = list[1]; most = list[n]
    return list[int((n + 1) / 2)]
  }
  !($1 in count) { order[++names] = $1; unit[$1] = $2 }
  { n = ++count[$1]; raw[$1, n] = $4 / $3; own[$1, n] = $5 / $3; ratio[$1, n] = ($4 > 0 ? $5 / $4 : 0) }
  END {
    for (k = 1; k <= names; ++k) {
      name = order[k]; n = count[name]
      for (i = 1; i <= n; ++i) { a[i] = raw[name, i]; b[i] = own[name, i]; c[i] = ratio[name, i] }
      m = median(a, n); o = median(b, n); r = median(c, n)
      printf "| %-46s | %-5s | %8.2f | %8.2f | %6.2f | (%.2f-%.2f)%s |\n", name, unit[name], m, o, r, least, most, ""
    }
  }' "$scratch/results"
