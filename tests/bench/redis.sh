#!/usr/bin/env bash
# kvstore beside plain Redis: one client, one connection, 16 values of 2 MiB a call out of 512 MiB of them, in memory.
# Then one value of 4 KiB at a time, where the time is that of the round trip: memcached, Redis, and kvstore by kvs_run and
# by `kvstore-bench run`, whose client runs on the thread that asks.
#
#   tests/bench/redis.sh [BUILD_DIR]            default build/release; KV_ROUNDS=5 rounds, KV_SECONDS=2 for each figure
#   KV_KEYS=256 KV_BLOCK_BYTES=2097152 KV_BATCH=16 tests/bench/redis.sh
#   KV_ONLY=latency tests/bench/redis.sh        the second table alone
#
# Run it on a quiet machine. Needs redis-server, python3, a C compiler and, for rows of their own, memcached and libhiredis-dev
# (Debian's names); without redis-server it says so and measures nothing. Starts a node and a Redis of its own: on loopback and
# on Unix sockets in a temporary folder, keeping nothing on disk. Every round measures all rows, one after the other; shown
# are medians, and the median, least and most of the rounds' ratios.
#
# Redis is given its best: values are received straight into their places (tests/bench/redis_get.c), asked for in one
# pipeline. What most programs use is hiredis, which copies each value twice more. kvstore verifies every byte, Redis none.
set -euo pipefail
cd "$(dirname "$0")/../.."
case ${1:-} in -h | --help) sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
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

cc -O2 -I. -o "$scratch/one_get" tests/bench/one_get.c -L"$build/client" "-Wl,-rpath,$PWD/$build/client" -lkvstore
flags=(-O2 -o "$scratch/redis_get" tests/bench/redis_get.c)
has_hiredis=
if cc -DKV_HIREDIS "${flags[@]}" -lhiredis 2> "$scratch/cc.log"; then
  has_hiredis=1
else
  echo 'redis.sh: without libhiredis-dev there is no row of hiredis' >&2
  cc "${flags[@]}"
fi

# A free port: bound to none, so another program may take it before Redis does, which then says so.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
port=$(free_port)
redis-server --bind 127.0.0.1 --port "$port" --unixsocket "$scratch/redis.sock" --save '' --appendonly no --dir "$scratch" \
  --daemonize no > "$scratch/redis.log" 2>&1 &
pids+=($!)
wait_for "$scratch/redis.log" $! 'eady to accept'
"$node" --listen tcp://127.0.0.1:0 --listen "unix://$scratch/node.sock" --admin none --threads 1 \
  --capacity "$((keys * bytes * 2))" > "$scratch/node.log" 2>&1 &
pids+=($!)
wait_for "$scratch/node.log" $! ' ready '
tcp=$(grep -o 'tcp://[0-9.:]*' "$scratch/node.log" | head -n 1)

memcached_port=
if command -v memcached > /dev/null; then
  memcached_port=$(free_port)
  memcached -l 127.0.0.1 -p "$memcached_port" -U 0 -t 1 -u nobody > "$scratch/memcached.log" 2>&1 &
  pids+=($!)
else
  echo 'redis.sh: without memcached there is no row of it' >&2
fi

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

# p50 and p99 of one call at a time, in microseconds
one() { "$scratch/one_get" "$1" "$2" 4096 "$seconds"; }
one_by_bench() {
  "$bench" run --op get --block-bytes 4096 --batch 1 --blocks 64 --connections 1 --duration "${seconds}s" --json \
    --endpoint "$tcp" > "$scratch/one.json"
  printf '%s %s\n' "$(number p50_us < "$scratch/one.json")" "$(number p99_us < "$scratch/one.json")"
}
for round in $(seq "$rounds"); do
  {
    if [ -n "$memcached_port" ]; then echo "get 4 KiB, memcached $(one memcached "127.0.0.1:$memcached_port")"; fi
    echo "get 4 KiB, Redis $(one redis "127.0.0.1:$port")"
    echo "get 4 KiB, kvs_run $(one kvstore "$tcp")"
    echo "get 4 KiB, kvstore-bench run $(one_by_bench)"
    echo "match of 256, kvs_run $(one match "$tcp")"
  } >> "$scratch/latencies"
done

for round in $(seq "$rounds"); do
  [ "${KV_ONLY:-}" != latency ] || break
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
printf '| one call at a time over TCP, us | p50 | (least-most) | p99 |\n| --- | ---: | --- | ---: |\n'
awk '
  function median(list, n,   i, j, t) {
    for (i = 2; i <= n; ++i) for (j = i; j > 1 && list[j - 1] > list[j]; --j) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
    return list[int((n + 1) / 2)]
  }
  { p99_now = $NF; p50_now = $(NF - 1); $NF = $(NF - 1) = ""; sub(/ +$/, ""); name = $0 }
  !(name in count) { order[++names] = name }
  { n = ++count[name]; p50[name, n] = p50_now; p99[name, n] = p99_now }
  END {
    for (k = 1; k <= names; ++k) {
      name = order[k]; n = count[name]
      for (i = 1; i <= n; ++i) { a[i] = p99[name, i]; b[i] = p50[name, i] }
      late = median(a, n); usual = median(b, n)
      printf "| %s | %.1f | (%.1f-%.1f) | %.1f |\n", name, usual, b[1], b[n], late
    }
  }' "$scratch/latencies"
[ "${KV_ONLY:-}" != latency ] || exit 0
printf '\n| get %s x %s, kvstore over | beside | it | kvstore | ratio | (least-most) |\n| --- | --- | ---: | ---: | ---: | --- |\n' \
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
