#!/usr/bin/env bash
# `cmake --install` into a scratch prefix: what it takes from the build is what the target `installed` builds (the quickstart
# builds that and nothing else), and what it leaves there works.
#   install_test.sh CMAKE BUILD-DIRECTORY C-COMPILER SANITIZERS
set -euo pipefail
cmake=$1 build=$2 cc=$3 sanitizers=$4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/usr
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

"$cmake" --install "$build" --prefix "$prefix" > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; fail 'cmake --install'; }

# Programs and libraries: each must be made on the way to `installed`.
commands=$(ninja -C "$build" -t commands installed)
made=0
while IFS= read -r file; do
  made=$((made + 1))
  grep -qE "[ /]$(basename "$file" | sed 's/[.]/\\./g')( |\$)" <<< "$commands" ||
    fail "$file is installed, and the target 'installed' does not build it"
done < <(find "$prefix/bin" "$prefix"/lib* -type f \( -path '*/bin/*' -o -name '*.a' -o -name '*.so*' \))
[ "$made" -ge 8 ] || fail "only $made programs and libraries are installed"

for file in bin/kvstore-node bin/kvstorectl bin/kvstore-bench bin/kvstore-policies etc/kvstore/kvstore-node.toml lib/systemd/system/kvstore-node.service \
  include/kvstore/client/client.h include/kvstore/client/kvstore.h; do
  [ -s "$prefix/$file" ] || fail "$file was not installed"
done
"$prefix/bin/kvstore-node" --config "$prefix/etc/kvstore/kvstore-node.toml" --check-config > /dev/null || fail 'the installed configuration'
for tool in kvstorectl kvstore-bench kvstore-policies; do "$prefix/bin/$tool" --help > /dev/null || fail "the installed $tool does not start"; done
grep -qxF "ExecStart=$prefix/bin/kvstore-node --config $prefix/etc/kvstore/kvstore-node.toml" "$prefix/lib/systemd/system/kvstore-node.service" ||
  fail 'the unit does not start the installed program with the installed configuration'

# A C program with nothing but what was installed.
library=$(dirname "$(find "$prefix" -name libkvstore.so)")
readelf -d "$library/libkvstore.so" | grep -qF '[$ORIGIN]' || fail 'libkvstore.so does not look beside itself for the CUDA module'
cat > "$scratch/user.c" << 'END'
#include <kvstore/client/kvstore.h>
#include <stdio.h>
int main(void) { return puts(kvs_status_text(0)) < 0; }
END
"$cc" -Wall -Werror ${sanitizers:+-fsanitize=$sanitizers} -I"$prefix/include" "$scratch/user.c" -L"$library" -lkvstore \
  -Wl,--allow-shlib-undefined -o "$scratch/user" || fail 'a C program cannot be built with what was installed'
if [ -z "$sanitizers" ]; then
  LD_LIBRARY_PATH=$library "$scratch/user" > /dev/null || fail 'that C program does not run'
fi

# Nothing is found by the names of the tree's folders, and each header includes by its installed name.
if grep -rlE '#include "(base|index|transport|gpu|client)/' "$prefix/include/kvstore" > "$scratch/said"; then
  fail "a header includes by a name of the tree: $(head -n 1 "$scratch/said")"
fi

# The example project with what find_package() and pkg-config find there.
if [ -z "$sanitizers" ]; then
  examples=$(cd "$(dirname "$0")/../.." && pwd)/client/examples
  { "$cmake" -S "$examples" -B "$scratch/example" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Debug &&
    "$cmake" --build "$scratch/example"; } > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; fail 'the example does not build by find_package(kvstore)'; }
  for program in first_hit_c first_hit_cxx; do
    "$scratch/example/$program" "unix://$scratch/nobody" > "$scratch/said" 2>&1 || { cat "$scratch/said" >&2; fail "$program without a node"; }
    grep -q '^0 of 4 blocks were cached (.*), 0 stored$' "$scratch/said" || { cat "$scratch/said" >&2; fail "$program without a node"; }
  done
  export PKG_CONFIG_PATH=$library/pkgconfig
  # shellcheck disable=SC2046  # words
  "$cc" -Wall -Werror "$examples/first_hit.c" $(pkg-config --cflags --libs kvstore) -o "$scratch/user" || fail 'pkg-config kvstore'
  # shellcheck disable=SC2046
  "$cc" -Wall -Werror -c $(pkg-config --cflags kvstore-client) -std=c++20 -fsyntax-only "$examples/first_hit.cc" || fail 'pkg-config kvstore-client'

  # Paged caches, plans and caches by layer, which have no C interface.
  cat > "$scratch/paging.cc" << 'END'
#include <kvstore/gpu/layer_caches/growing_cache.h>
#include <kvstore/gpu/paging/chunk_plan.h>
#include <kvstore/gpu/paging/paged_cache.h>
#include <kvstore/gpu/plans/row_plan.h>
int main() {
  kv::PagePool pool(8);
  kv::PagedCache cache(pool, {.block_size = 4});
  return cache.open({}, 9) && pool.free_count() == 4 && kv::GrowingCache().token_count() == 0 ? 0 : 1;
}
END
  # shellcheck disable=SC2046
  "$cc" -Wall -Werror -std=c++20 "$scratch/paging.cc" $(pkg-config --cflags --libs kvstore-client) -lstdc++ -lm -o "$scratch/user" ||
    fail 'paging by pkg-config kvstore-client'
  "$scratch/user" || fail 'the program of the paged cache'
fi
echo "install_test: $made programs and libraries"
