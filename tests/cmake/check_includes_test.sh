#!/usr/bin/env bash
# cmake/check_includes on small trees: each forbidden include is found, by file and line, and nothing else is.
set -euo pipefail
check=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
case_count=0

# expect CODE FILE LINE [TEXT]: a tree whose FILE holds LINE (after a first line of comment) gives exit code CODE and prints TEXT
expect() {
  local code=$1 file=$2 line=$3 text=${4:-} got=0 out
  rm -rf "$scratch/tree"
  mkdir -p "$scratch/tree/base" "$scratch/tree/$(dirname "$file")"
  echo '#include <vector>' > "$scratch/tree/base/plain.h"
  printf '// a comment\n%s\n' "$line" > "$scratch/tree/$file"
  out=$("$check" "$scratch/tree" 2>&1) || got=$?
  case_count=$((case_count + 1))
  if [ "$got" != "$code" ] || [[ "$out" != *"$text"* ]]; then
    printf 'FAILED: %s with %s: exit %s, want %s; printed:\n%s\n' "$file" "$line" "$got" "$code" "$out" >&2
    exit 1
  fi
}

expect 1 base/a.h '#include "index/block_hash.h"' 'base/a.h:2: base/* must not include index/*'
expect 1 index/a.h '#include "store/store.h"' 'index/* must not include store/*'
expect 1 index/a.cc '#  include <sys/mman.h>' 'index must not include <sys/mman.h>'
expect 1 store/store.h '#include "transport/stream.h"' 'store/* must not include transport/*'
expect 1 store/store.h '#include "store/node/options/config.h"' 'store/* must not include store/node/options'
expect 1 store/store.cc '#include <mutex>' 'store must not include <mutex>'
expect 1 store/store.cc '#include <boost/asio/awaitable.hpp>' 'store must not include <boost/asio/awaitable.hpp>'
expect 1 transport/a.cc '#include "store/store.h"' 'transport/* must not include store/*'
expect 1 transport/a.cc '#include "index/block_hash.h"' 'transport/* must not include index/*'
expect 1 transport/a.cc '#include <cuda_runtime.h>' 'transport must not include <cuda_runtime.h>'
expect 1 transport/a.cc '#include <infiniband/verbs.h>' 'transport must not include <infiniband/verbs.h>'
expect 0 transport/ibverbs/a.cc '#include <infiniband/verbs.h>'
expect 1 store/node/jobs/a.cc '#include "client/client.h"' 'store/node/jobs must not include client/client'
expect 1 client/calls/get.cc '#include "store/store.h"' 'client/client must not include store/*'
expect 1 client/tools/ctl/ctl.cc '#include "store/store.h"' 'client/tools/ctl must not include store/*'
expect 1 client/tools/bench/run.cc '#include "store/replay/policy_run.h"' 'client/tools/bench must not include store/replay'
expect 1 store/replay/policies.cc '#include "store/node/options/config.h"' 'store/replay must not include store/node/options'
expect 1 client/calls/get.cc '#include <infiniband/verbs.h>' 'client must not include'
expect 1 client/calls/get.cc '#include "../store/store.h"' 'relative path'
expect 1 client/calls/get.cc '#include "client.h"' 'not a folder of this project'
expect 1 client/calls/get.cc '#include <client/client.h>' 'included with ""'
# Rooms of one folder, and files without a row.
expect 1 client/link/call.h '#include "client/client.h"' 'client/link must not include client/client'
expect 1 client/core/client_core.cc '#include "client/calls/batch_put.h"' 'client/core must not include client/client'
expect 1 store/node/metrics.h '#include "store/node/session/session.h"' 'store/node must not include store/node/session'
expect 1 store/node/status/status.h '#include "store/node/session/session.h"' 'store/node/status must not include store/node/session'
expect 1 client/get.cc '#include "base/plain.h"' 'client/get.cc: no row'
expect 1 client/calls/get.cc '#include "client/new_room/a.h"' 'no row of the table'
# The inner table: one file of a row may not include another.
expect 1 store/desks/disk_desk.h '#include "store/desks/read_desk.h"' 'store/desks/disk_desk must not include store/desks/read_desk'
expect 0 store/desks/disk_desk.h '#include "store/desks/space_desk.h"'
expect 0 store/desks/disk_desk.h '#include "store/disk/disk.h"'
# Friends.
expect 1 client/core/a.h 'class A { };
  friend class ClientStaging;' 'client/core/a.h:3: the friend ClientStaging is no class of client/core'
expect 0 client/core/a.h 'class A {
  friend class A;
  friend bool operator==(const A&, const A&) = default;'

expect 0 store/store.h '#include "index/block_hash.h"'
expect 0 store/node/session/session.cc '#include "transport/stream.h"'
expect 0 store/node/session/session.cc '#include <boost/asio/awaitable.hpp>'
expect 0 store/node/session/session.cc '#include <mutex>'
expect 0 client/calls/get.cc '#include "transport/stream.h"'
expect 0 client/calls/get.cc '#include "client/core/client_core.h"'
expect 0 store/replay/policy_run.cc '#include "store/store.h"'
expect 0 store/replay/policies.cc '#include "client/tools/text_table.h"'
expect 0 store/node/mover/mover.h '#include "client/client.h"'
expect 0 tests/tools/optimum_test.cc '#include "store/replay/optimum.h"'
expect 0 tests/sim/sim_test.cc '#include "store/node/session/session.h"'
expect 0 store/store.h '// #include "transport/stream.h" in a comment'

# A folder of 25 files is taken, one of 26 is not.
rm -rf "$scratch/tree"
mkdir -p "$scratch/tree/client/calls"
for i in $(seq 25); do : > "$scratch/tree/client/calls/a$i.h"; done
"$check" "$scratch/tree" > /dev/null || { echo 'FAILED: 25 files are refused' >&2; exit 1; }
: > "$scratch/tree/client/calls/a26.py"
said=$("$check" "$scratch/tree") && { echo 'FAILED: 26 files pass' >&2; exit 1; }
[[ $said == *'client/calls: 26 files'* ]] || { echo "FAILED: 26 files: $said" >&2; exit 1; }

# A table with a row that may include one below it.
mkdir -p "$scratch/other/cmake" "$scratch/other/docs" "$scratch/other/base"
cp "$check" "$scratch/other/cmake/"
: > "$scratch/other/base/a.h"
printf '## Folders, and who may include whom\n\n    base/*  first  -> index\n    index/*  second  -> base\n' > "$scratch/other/docs/architecture.md"
said=$("$scratch/other/cmake/check_includes") && { echo 'FAILED: a row below passes' >&2; exit 1; }
[[ $said == *'base/* -> index: no row above it'* ]] || { echo "FAILED: a row below: $said" >&2; exit 1; }

got=0
"$check" "$scratch/tree/nowhere" > /dev/null 2>&1 || got=$?
[ "$got" != 0 ] || { echo 'FAILED: an absent tree passes' >&2; exit 1; }
echo "check_includes_test: $case_count cases"
