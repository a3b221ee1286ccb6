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

expect 1 base/a.h '#include "index/block_hash.h"' 'base/a.h:2: base must not include index'
expect 1 index/a.h '#include "store/store.h"' 'index must not include store'
expect 1 index/a.cc '#  include <sys/mman.h>' 'index must not include <sys/mman.h>'
expect 1 store/store.h '#include "transport/stream.h"' 'store must not include transport'
expect 1 store/store.h '#include "store/node/options/config.h"' 'store must not include store/node'
expect 1 store/store.cc '#include <mutex>' 'store must not include <mutex>'
expect 1 store/store.cc '#include <boost/asio/awaitable.hpp>' 'store must not include <boost/asio/awaitable.hpp>'
expect 1 transport/a.cc '#include "store/store.h"' 'transport must not include store'
expect 1 transport/a.cc '#include "index/block_hash.h"' 'transport must not include index'
expect 1 transport/a.cc '#include <cuda_runtime.h>' 'transport must not include <cuda_runtime.h>'
expect 1 transport/a.cc '#include <infiniband/verbs.h>' 'transport must not include <infiniband/verbs.h>'
expect 0 transport/ibverbs/a.cc '#include <infiniband/verbs.h>'
expect 1 store/node/a.cc '#include "client/client.h"' 'store/node must not include client'
expect 1 client/calls/get.cc '#include "store/store.h"' 'client must not include store'
expect 1 client/tools/ctl/ctl.cc '#include "store/store.h"' 'client must not include store'
expect 1 client/tools/bench/run.cc '#include "store/replay/policy_run.h"' 'client must not include store/replay'
expect 1 store/replay/policies.cc '#include "store/node/options/config.h"' 'store/replay must not include store/node'
expect 1 client/calls/get.cc '#include <infiniband/verbs.h>' 'client must not include'
expect 1 client/calls/get.cc '#include "../store/store.h"' 'relative path'
expect 1 client/calls/get.cc '#include "client.h"' 'not a folder of this project'
expect 1 client/calls/get.cc '#include <client/client.h>' 'included with ""'

expect 0 store/store.h '#include "index/block_hash.h"'
expect 0 store/node/session/session.cc '#include "transport/stream.h"'
expect 0 store/node/session/session.cc '#include <boost/asio/awaitable.hpp>'
expect 0 store/node/session/session.cc '#include <mutex>'
expect 0 client/calls/get.cc '#include "transport/stream.h"'
expect 0 store/replay/policy_run.cc '#include "store/store.h"'
expect 0 client/tools/bench/policies/policies.cc '#include "client/tools/text_table.h"'
expect 0 tests/tools/optimum_test.cc '#include "store/replay/optimum.h"'
expect 0 tests/sim/sim_test.cc '#include "store/node/session/session.h"'
expect 0 store/store.h '// #include "transport/stream.h" in a comment'

got=0
"$check" "$scratch/tree/nowhere" > /dev/null 2>&1 || got=$?
[ "$got" != 0 ] || { echo 'FAILED: an absent tree passes' >&2; exit 1; }
echo "check_includes_test: $case_count cases"
