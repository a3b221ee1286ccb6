#!/usr/bin/env bash
# Builds Debian packages for the Debian that this runs on: kvstore-node, kvstore-client, libkvstore1, libkvstore-dev, kvstore-rdma, and
# kvstore-cuda where there is nvcc. One Debian's packages do not serve another: the names of RocksDB's, spdlog's and OpenSSL's
# libraries differ. docs/install.md says how to install them.
#
#   deploy/package.sh               writes to build/packages
#     --out DIR                     writes there instead
#     --no-cuda                     without kvstore-cuda, whose kernels take a quarter of an hour to compile
#     --fast                        without Debian's hardening flags: for work on the packaging, since the compiler cache has most of it
#     --lint                        runs lintian on them too, and fails where it finds an error or a warning
#
# Missing tools are installed (deploy/install-dependencies.sh --packages), if this is root or there is sudo.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

fail() { printf 'package.sh: %s\n' "$*" >&2; exit 1; }

out=$root/build/packages lint=no cuda=no options=
! command -v nvcc > /dev/null && [ ! -x /usr/local/cuda/bin/nvcc ] || cuda=yes
while [ $# -gt 0 ]; do
  case $1 in
    --out) [ $# -gt 1 ] || fail '--out: which folder?'; mkdir -p "$2"; out=$(cd "$2" && pwd); shift ;;
    --no-cuda) cuda=no ;;
    --fast) options='kvstore-fast noautodbgsym' ;;
    --lint) lint=yes ;;
    -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) fail "unknown argument '$1' (see --help)" ;;
  esac
  shift
done
wanted=(--packages)
[ $lint = no ] || wanted+=(--lint)
deploy/install-dependencies.sh "${wanted[@]}"

# shellcheck source=/dev/null
release=$(. /etc/os-release && echo "${VERSION_ID%%.*}")
version=$(sed -nE 's/^project\(kvstore VERSION ([0-9.]+) .*/\1/p' CMakeLists.txt)
# The build for Debian 12 has a lower version than that for Debian 13, so that an upgrade of Debian replaces it.
debian_version=$version~deb$release

# A copy, always in the same place for the compiler cache; unchanged files keep their time.
work=$root/build/packages-work
tree=$work/kvstore
rm -rf "$tree"
mkdir -p "$tree" "$out"
tar -c --exclude=./build --exclude='./build-*' --exclude=./.git --exclude=__pycache__ . | tar -x -C "$tree"
cp -r deploy/debian "$tree/debian"
sed "1s/(.*)/($debian_version)/" deploy/debian/changelog > "$tree/debian/changelog"
grep -q "^kvstore ($version)" deploy/debian/changelog || fail "deploy/debian/changelog does not begin with version $version of CMakeLists.txt"

profiles=()
[ $cuda = no ] || profiles=(--build-profiles=pkg.kvstore.cuda)
# debhelper gives the build its own home directory; the compiler cache stays in place.
cache=${CCACHE_DIR:-$(ccache -k cache_dir 2> /dev/null || true)}
log=$work/build.log
if ! (cd "$tree" && env ${cache:+CCACHE_DIR="$cache"} CCACHE_BASEDIR="$tree" CCACHE_NOHASHDIR=1 PATH="$PATH:/usr/local/cuda/bin" \
  DEB_BUILD_OPTIONS="parallel=${KV_JOBS:-$(nproc)} $options ${DEB_BUILD_OPTIONS:-}" \
  dpkg-buildpackage -b -us -uc "${profiles[@]}") > "$log" 2>&1; then
  grep -A 15 -E 'error:|FAILED|CMake Error|dh_.*: ' "$log" | head -n 80 || tail -n 40 "$log"
  fail "the build failed: $log"
fi
rm -f "$out"/*kvstore*_*.{deb,changes,buildinfo}
mv "$work"/*kvstore*_*.{deb,changes,buildinfo} "$out/"
(cd "$out" && ls -1 ./*.deb)
if [ $lint = yes ]; then
  lintian --fail-on error,warning --tag-display-limit 0 --allow-root "$out"/kvstore_*.changes || fail 'lintian has found something'
fi
