#!/usr/bin/env bash
# kvstore beside plain Redis: one client, one connection, 16 values of 2 MiB a call out of 512 MiB of them, in memory. One
# value of 4 KiB at a time, beside memcached too: calls.py.
#
#   tests/bench/redis.sh [BUILD_DIR]            default build/release; KV_ROUNDS=5 rounds, KV_SECONDS=2 for each figure
#   KV_KEYS=256 KV_BLOCK_BYTES=2097152 KV_BATCH=16 tests/bench/redis.sh
#
# Run it on a quiet machine. Needs redis-server, python3, a C compiler and, for the row of hiredis, libhiredis-dev (Debian's
# names); without redis-server it says so and measures nothing. Starts a node and a Redis of its own: on loopback and
# on Unix sockets in a temporary folder, keeping nothing on disk. Every round measures all rows, one after the other; shown
# are medians, and the median, least and most of the rounds' ratios.
#
# Redis is given its best: values are received straight into their places (tests/bench/redis_get.c), asked for in one
# pipeline. What most programs use is hiredis, which copies each value twice more. kvstore verifies every byte, Redis none.
set -euo pipefail
cd "$(dirname "$0")/../.."
case ${1:-} in -h | --help) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
build=${1:-build/release}
rounds=${KV_ROUNDS:-5} seconds=${KV_SECONDS:-2}
keys=${KV_KEYS:-256} bytes=${KV_BLOCK_BYTES:-2097152} batch=${KV_BATCH:-16}
skip() { echo "redis.sh: SKIPPED, nothing was measured: $*" >&2; exit 0; }
command -v redis-server > /dev/null || skip 'redis-server is not installed (apt-get install --no-install-recommends redis-server)'
command -v cc > /dev/null || skip 'there is no C compiler'
node=$build/store/node/kvstore-node
bench=$build/client/tools/kvstore-bench
for program in "$node" "$bench"; do
  [ -x "$program" ] || { echo "redis.sh: no $program; build it: cmake --preset release && cmake --build --preset release" >&2; exit 1; }
done

scratch=$(mktemp -d)
pids=()
clean_up() {
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
  wait
  rm -rf "$scratch"
}
trap clean_up EXIT

# wait_for FILE_OF_LOG PID WORD: until the log has the word
wait_for() {
  for _ in $(seq 600); do
    grep -q "$3" "$1" 2> /dev/null && return 0
    kill -0 "$2" 2> /dev/null || break
    sleep 0.1
  done
  cat "$1" >&2
  exit 1
}

flags=(-O2 -o "$scratch/redis_get" tests/bench/redis_get.c)
has_hiredis=
if cc -DKV_HIREDIS "${flags[@]}" -lhiredis 2> "$scratch/cc.log"; then
  has_hiredis=1
else
  echo 'redis.sh: without libhiredis-dev there is no row of hiredis' >&2
  cc "${flags[@]}"
fi

# A free port: bound to none, so another program may take it before Redis does, which then says so.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
redis-server --bind 127.0.0.1 --port "$port" --unixsocket "$scratch/redis.sock" --save '' --appendonly no --dir "$scratch" \
  --daemonize no > "$scratch/redis.log" 2>&1 &
pids+=($!)
wait_for "$scratch/redis.log" $! 'eady to accept'
"$node" --listen tcp://127.0.0.1:0 --listen "unix://$scratch/node.sock" --admin none --threads 1 \
  --capacity "$((keys * bytes * 2))" > "$scratch/node.log" 2>&1 &
pids+=($!)
wait_for "$scratch/node.log" $! ' ready '
tcp=$(grep -o 'tcp://[0-9.:]*' "$scratch/node.log" | head -n 1)

redis() { "$scratch/redis_get" "$1" "$2" "$keys" "$bytes" "${@:3}"; }
redis "$scratch/redis.sock" fill

# number KEY: of the JSON document on stdin; of an object, its median
number() {
  awk -v key="\"$1\":" '
    $1 == key && $2 !~ /\{/ { print $2 + 0; exit }
    $1 == key { inside = 1; next }
    inside && $1 == "\"median\":" { print $2 + 0; exit }'
}
ours() {
  "$bench" run --op get --block-bytes "$bytes" --batch "$batch" --blocks "$keys" --connections 1 --duration "${seconds}s" \
    --json "$@" | number bytes_per_second
}
limit() {
  "$bench" limit --only "$1" --block-bytes "$bytes" --batch "$batch" --connections 1 --rounds 1 --duration "${seconds}s" --json |
    number bytes_per_second
}

for round in $(seq "$rounds"); do
  [ -t 2 ] && printf '\rround %d of %d' "$round" "$rounds" >&2
  memcpy=$(limit memcpy)
  redis_tcp=$(redis "127.0.0.1:$port" direct "$batch" "$seconds")
  our_tcp=$(ours --endpoint "$tcp")
  redis_unix=$(redis "$scratch/redis.sock" direct "$batch" "$seconds")
  our_unix=$(ours --endpoint "unix://$scratch/node.sock" --transport unix)
  our_shm=$(ours --endpoint "unix://$scratch/node.sock" --transport shm)
  {
    printf 'TCP\tRedis\t%s\t%s\n' "$redis_tcp" "$our_tcp"
    printf 'Unix socket\tRedis\t%s\t%s\n' "$redis_unix" "$our_unix"
    printf 'shared memory\tRedis, Unix socket\t%s\t%s\n' "$redis_unix" "$our_shm"
    if [ -n "$has_hiredis" ]; then
      printf 'TCP\tRedis by hiredis\t%s\t%s\n' "$(redis "127.0.0.1:$port" hiredis "$batch" "$seconds")" "$our_tcp"
    fi
    printf 'shared memory\tmemcpy\t%s\t%s\n' "$memcpy" "$our_shm"
  } >> "$scratch/results"
done
[ -t 2 ] && printf '\r\033[K' >&2

printf '%s, %s cores, load %s; %s\n%d rounds of %s s for each figure; medians; GB/s\n\n' \
  "$(awk -F': ' '/model name/ { print $2; exit }' /proc/cpuinfo)" "$(nproc)" "$(cut -d' ' -f1-3 /proc/loadavg)" \
  "$(redis-server --version | grep -o 'v=[0-9.]*' | sed 's/v=/Redis /')" "$rounds" "$seconds"
printf '| get %s x %s, kvstore over | beside | it | kvstore | ratio | (least-most) |\n| --- | --- | ---: | ---: | ---: | --- |\n' \
  "$(numfmt --to=iec-i --suffix=B "$bytes")" "$batch"
awk -F'\t' '
  function median(list, n,   i, j, t) {
    for (i = 2; i <= n; ++i) for (j = i; j > 1 && list[j - 1] > list[j]; --j) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
    least = list[1]; most = list[n]
    return list[int((n + 1) / 2)]
  }
  { name = $1 " | " $2 }
  !(name in count) { order[++names] = name }
  { n = ++count[name]; theirs[name, n] = $3 / 1e9; own[name, n] = $4 / 1e9; ratio[name, n] = ($3 > 0 ? $4 / $3 : 0) }
  END {
    for (k = 1; k <= names; ++k) {
      name = order[k]; n = count[name]
      for (i = 1; i <= n; ++i) { a[i] = theirs[name, i]; b[i] = own[name, i]; c[i] = ratio[name, i] }
      t = median(a, n); o = median(b, n); r = median(c, n)
      printf "| %s | %.2f | %.2f | %.2f | (%.2f-%.2f) |\n", name, t, o, r, least, most
    }
  }' "$scratch/results"
