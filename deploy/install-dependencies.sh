#!/usr/bin/env bash
# Installs what building and running kvstore needs, from Debian's own packages (Debian 12 or newer). Safe to run again: with
# nothing missing it asks dpkg and ends.
#
#   deploy/install-dependencies.sh           what deploy/quickstart.sh needs
#   deploy/install-dependencies.sh --test    also what deploy/test.sh needs (Clang, sanitizer and fuzzing runtimes, GoogleTest, Python)
#   deploy/install-dependencies.sh --debian  also what tests/debian/run.sh needs (debootstrap)
#   deploy/install-dependencies.sh --packages also what deploy/package.sh needs (debhelper); with --lint lintian too
#   deploy/install-dependencies.sh --kubernetes also what the tests of deploy/kubernetes need (kubectl, or kustomize; pytest, YAML)
#   deploy/install-dependencies.sh --rdma    also what tests/rdma_vm/run.sh needs (QEMU, libibverbs with its software devices)
#   deploy/install-dependencies.sh --cluster also what deploy/cluster.sh and the tests of clusters need (etcd; its service is neither
#                                            started nor enabled)
#   deploy/install-dependencies.sh --observe also what deploy/observe.sh and tests/observe need (Prometheus and Alertmanager; their
#                                            services are neither started nor enabled)
#   deploy/install-dependencies.sh --page    also what tests/page needs (Chromium and its driver)
set -euo pipefail

fail() { printf 'install-dependencies: %s\n' "$*" >&2; exit 1; }

# shellcheck source=/dev/null
debian=$(. /etc/os-release && echo "${VERSION_ID:-}") || true  # another system is refused below
debian=${debian%%.*}

packages=(build-essential cmake ninja-build pkg-config ccache git ca-certificates
  flatbuffers-compiler libflatbuffers-dev libcli11-dev libspdlog-dev prometheus-cpp-dev libxxhash-dev libsystemd-dev libssl-dev
  librocksdb-dev libibverbs-dev zlib1g-dev nlohmann-json3-dev libgtest-dev libgmock-dev libbenchmark-dev)
services=()  # Debian starts these at installation
# Boost 1.81 is the oldest that builds kvstore. Debian 12 has it beside its default 1.74, and the two exclude each other.
if [ "$debian" = 12 ]; then
  packages+=(libboost1.81-dev) clang=(clang-16 libclang-rt-16-dev llvm-16)
else
  packages+=(libboost-dev) clang=(clang libclang-rt-dev llvm)
fi
for argument in "$@"; do
  case $argument in
    --test) packages+=(python3-dev python3-venv python3-pip "${clang[@]}") ;;
    --debian) packages+=(debootstrap) ;;
    --packages) packages+=(debhelper dpkg-dev python3) ;;
    --lint) packages+=(lintian man-db) ;;
    --kubernetes)
      packages+=(python3-pytest python3-yaml)
      # Debian 12's kubectl is too old for `kubectl kustomize`; any other that is installed will do.
      command -v kubectl > /dev/null || command -v kustomize > /dev/null || packages+=(kubernetes-client) ;;
    --rdma) packages+=(qemu-system-x86 busybox-static cpio kmod iproute2 rdma-core ibverbs-providers) ;;
    --cluster) services+=(etcd-server) packages+=(etcd-server etcd-client) ;;
    --observe)
      services+=(prometheus prometheus-alertmanager)
      packages+=(prometheus prometheus-alertmanager python3-pytest) ;;
    --page) packages+=(chromium chromium-driver fonts-dejavu-core python3-pytest) ;;
    -h | --help) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) fail "unknown argument '$argument' (see --help)" ;;
  esac
done
command -v dpkg-query > /dev/null && command -v apt-get > /dev/null ||
  fail "this script knows Debian's packages only; on another system install the list in this file by hand"

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2> /dev/null)" = installed ]; }

missing=()
for package in "${packages[@]}"; do is_installed "$package" || missing+=("$package"); done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo > /dev/null || fail "packages are missing and this is neither root nor is there sudo. As root, run:
  apt-get install ${missing[*]}"
  as_root=(sudo)
fi

echo "Installing ${#missing[@]} packages: ${missing[*]}"
log=$(mktemp)
policy=/usr/sbin/policy-rc.d kept='' is_ours=no
clean_up() {
  rm -f "$log"
  [ $is_ours = no ] || "${as_root[@]}" rm -f "$policy"
  [ -z "$kept" ] || "${as_root[@]}" mv "$kept" "$policy"
}
trap clean_up EXIT
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" < /dev/null > "$log" 2>&1 ||
    { tail -n 30 "$log" >&2; return 1; }
}
# Package lists can be stale or, in a fresh container, absent. A failed refresh is harmless if the packages are available anyway.
apt update || echo 'install-dependencies: apt-get update failed; going on with the package lists that are here' >&2

# Never remove other software of this machine.
removed=$("${as_root[@]}" apt-get -s install --no-install-recommends "${missing[@]}" 2> /dev/null | awk '/^Remv /{print $2}' | xargs)
if [ -n "$removed" ]; then
  fail "installing ${missing[*]} would remove: $removed
If nothing else here needs those, remove them first (apt-get remove $removed), then run this again."
fi

# Tests start programs, not services: services must not start during the installation, nor later with the machine. Services that were
# installed before stay as they are.
new_services=()
for service in "${services[@]}"; do is_installed "$service" || new_services+=("$service"); done
if [ ${#new_services[@]} -gt 0 ]; then
  if [ -e "$policy" ]; then
    kept=$policy.before-kvstore
    "${as_root[@]}" mv "$policy" "$kept"
  fi
  is_ours=yes
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" > /dev/null
  "${as_root[@]}" chmod 755 "$policy"
fi
apt install -y --no-install-recommends "${missing[@]}" || fail "apt-get could not install: ${missing[*]}"
for service in "${new_services[@]}"; do
  service=${service%-server}  # etcd-server's service is named etcd
  if command -v systemctl > /dev/null; then
    "${as_root[@]}" systemctl disable -q "$service"
  else
    "${as_root[@]}" update-rc.d "$service" disable
  fi || echo "install-dependencies: the service $service could not be disabled; it starts with the machine" >&2
done
