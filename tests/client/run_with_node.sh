#!/bin/sh
# run_with_node.sh NODE PROGRAM: runs PROGRAM with the endpoint of a kvstore-node that lives as long as it.
set -eu
directory=$(mktemp -d)
"$1" --listen "unix://$directory/node" --capacity 64MiB --admin none >"$directory/log" 2>&1 &
node=$!
trap 'kill "$node" 2>/dev/null || true; wait "$node" 2>/dev/null || true; rm -rf "$directory"' EXIT
i=0
while [ ! -S "$directory/node" ]; do
  i=$((i + 1))
  if [ "$i" -gt 600 ] || ! kill -0 "$node" 2>/dev/null; then
    cat "$directory/log" >&2
    exit 1
  fi
  sleep 0.05
done
"$2" "unix://$directory/node"
