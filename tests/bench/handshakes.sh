#!/usr/bin/env bash
# What TLS handshakes cost a node, and those whom it serves already: docs/security.md has the figures.
#
#   tests/bench/handshakes.sh [BUILD_DIR]       default build/release; KV_ROUNDS=5 rounds, KV_SECONDS=3 for each figure
#   KV_THREADS=2 tests/bench/handshakes.sh      I/O threads of the node (1)
#
# The node has the first processor, its clients the second. One session asks for 256 hashes 1,000 times a second, first
# beside a program that only takes processor time, then beside one that connects and leaves as fast as it can, with
# certificates on both sides. Both of these have the least priority, so that they take nothing from that session but what
# the node gives them. Shown for each round: the session's p50 and p99 without and with, handshakes a second, and how many
# of them a second of the node's processor makes. Needs openssl and python3; no root.
set -euo pipefail
cd "$(dirname "$0")/../.."
case ${1:-} in -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
build=${1:-build/release}
rounds=${KV_ROUNDS:-5} seconds=${KV_SECONDS:-3} threads=${KV_THREADS:-1}
node=$build/store/node/kvstore-node
bench=$build/client/tools/kvstore-bench
for program in "$node" "$bench"; do
  [ -x "$program" ] || { echo "handshakes.sh: no $program; build it: cmake --preset release && cmake --build --preset release" >&2; exit 1; }
done
[ "$(nproc)" -ge 2 ] || { echo 'handshakes.sh: one processor; the node and its clients need one each' >&2; exit 1; }

scratch=$(mktemp -d)
pids=()
clean_up() {
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
  rm -rf "$scratch"
}
trap clean_up EXIT
deploy/tls-demo.sh --loopback --files "$scratch" > /dev/null

taskset -c 0 "$node" --listen tls://127.0.0.2:0 --admin none --capacity 256MiB --threads "$threads" --tls-handshakes-per-second 0 --tls-cert "$scratch/node1.pem" \
  --tls-key "$scratch/node1.key" --tls-ca "$scratch/ca.pem" --tls-allowed-name 'spiffe://demo/worker/*' \
  > "$scratch/node.log" 2>&1 &
served=$!
pids+=($served)
until grep -q ' ready ' "$scratch/node.log"; do
  kill -0 $served 2> /dev/null || { cat "$scratch/node.log" >&2; exit 1; }
  sleep 0.1
done
endpoint=$(grep -o 'tls://[0-9.:]*' "$scratch/node.log" | head -n 1)

# Connects, proves itself, leaves; until it is ended. SIGTERM prints how many times, and what the node's processor spent.
cat > "$scratch/arrive.py" << 'END'
import os, signal, socket, ssl, sys, time
host, port, files, node = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
context = ssl.create_default_context(cafile=f"{files}/ca.pem")
context.load_cert_chain(f"{files}/worker.pem", f"{files}/worker.key")
context.check_hostname = True
def spent():
    fields = open(f"/proc/{node}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
ended = False
def end(*_):
    global ended
    ended = True
signal.signal(signal.SIGTERM, end)
count, begin, before = 0, time.monotonic(), spent()
while not ended:
    with socket.create_connection((host, port), 5) as plain, context.wrap_socket(plain, server_hostname=host):
        count += 1
seconds = time.monotonic() - begin
print(f"{count} {count / seconds:.0f} {spent() - before:.2f}")
END

# session: p50 and p99 of the session that is served already, in microseconds
session() {
  taskset -c 1 "$bench" run --op match -e "$endpoint" --tls-cert "$scratch/worker.pem" --tls-key "$scratch/worker.key" \
    --tls-ca "$scratch/ca.pem" --block-bytes 4KiB --batch 256 --blocks 4096 --connections 1 --rate 1000 \
    --duration "${seconds}s" --json > "$scratch/run.json"
  python3 -c 'import json,sys; one = json.load(open(sys.argv[1])); print(round(one["p50_us"], 1), round(one["p99_us"], 1))' "$scratch/run.json"
}

printf '%-7s %12s %12s %12s %12s %14s %18s\n' round 'p50 without' 'p50 with' 'p99 without' 'p99 with' handshakes/s 'a second of core'
for round in $(seq "$rounds"); do
  taskset -c 1 nice -n 19 sh -c 'while :; do :; done' &
  hog=$!
  pids+=($hog)
  read -r p50_without p99_without < <(session)
  kill $hog
  wait $hog 2> /dev/null || true
  address=${endpoint#tls://}
  taskset -c 1 nice -n 19 python3 "$scratch/arrive.py" "${address%:*}" "${address##*:}" "$scratch" "$served" > "$scratch/arrived" &
  arriving=$!
  pids+=($arriving)
  read -r p50_with p99_with < <(session)
  kill $arriving
  wait $arriving 2> /dev/null || true
  read -r count rate spent < "$scratch/arrived"
  printf '%-7s %12s %12s %12s %12s %14s %18s\n' "$round" "$p50_without" "$p50_with" "$p99_without" "$p99_with" "$rate" \
    "$(python3 -c 'import sys; print(round(int(sys.argv[1]) / max(0.01, float(sys.argv[2]))))' "$count" "$spent")"
done
