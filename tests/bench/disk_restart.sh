#!/usr/bin/env bash
# How soon a node serves again, and has its index again, with many small blocks on disk.
#
#   tests/bench/disk_restart.sh DIRECTORY [BUILD_DIR]   a directory on the device; KV_BLOCKS=1000000 blocks of 4 KiB at least
#
# Puts blocks until so many lie on disk, stops the node, starts it again and looks every 50 ms.
set -euo pipefail
case ${1:-} in -h | --help | '') sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
directory=$1 build=${2:-build/release} wanted=${KV_BLOCKS:-1000000}
node=$build/store/node/kvstore-node
bench=$build/client/tools/kvstore-bench

scratch=$(mktemp -d)
disk=$(mktemp -d "$directory/kvstore-restart-XXXXXX")
pid=
clean_up() {
  [ -z "$pid" ] || kill -9 "$pid" 2> /dev/null || true
  rm -rf "$scratch" "$disk"
}
trap clean_up EXIT

start() {
  "$node" --listen "unix://$scratch/socket" --admin 127.0.0.1:0 --capacity 256MiB --disk-path "$disk" --disk-capacity 64GiB \
    --disk-put-wait-seconds 5 > "$scratch/log" 2>&1 &
  pid=$!
  until grep -q ' ready ' "$scratch/log"; do
    kill -0 $pid 2> /dev/null || { cat "$scratch/log" >&2; exit 1; }
    sleep 0.05
  done
  admin=$(grep -o 'admin=[0-9.:]*' "$scratch/log" | cut -d= -f2)
}
# metric NAME: its value, over a socket of bash's own
metric() {
  exec 3<> "/dev/tcp/${admin%:*}/${admin##*:}"
  printf 'GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n' >&3
  awk -v name="$1" '$1 == name { printf "%d\n", $2 }' <&3
  exec 3>&-
}
now() { date +%s.%N; }
since() { awk -v from="$1" -v to="$(now)" 'BEGIN { printf "%.2f", to - from }'; }

start
round=0
until [ "$(metric kvstore_disk_blocks)" -ge "$wanted" ]; do
  round=$((round + 1))
  "$bench" run --op put -e "unix://$scratch/socket" --block-bytes 4KiB --batch 256 --duration 5s --salt "$round" > "$scratch/put" 2>&1 ||
    { cat "$scratch/put" >&2; exit 1; }
  echo "$(metric kvstore_disk_blocks) blocks on disk" >&2
done
kill -TERM $pid
wait $pid
began=$(now)
start
echo "serving after $(since "$began") s (256 MiB of memory are touched first)"
until [ "$(metric kvstore_disk_is_loading)" = 0 ]; do sleep 0.05; done
echo "$(metric kvstore_disk_blocks) blocks are in the index again after $(since "$began") s"
grep -h 'disk: ' "$scratch/log"
echo "index: $(($(metric kvstore_index_bytes) / $(metric kvstore_disk_blocks))) bytes a block on disk, that of memory included"
