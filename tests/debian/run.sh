#!/usr/bin/env bash
# Runs a command on these sources in a bare Debian of another release: a root directory made by debootstrap, entered by chroot
# with mounts and processes of its own. Needs root, debootstrap and a mirror; the mirror is the one of this system's apt.
#
#   tests/debian/run.sh --check RELEASE          exits 0 if it can be done, else says why not. RELEASE: 12, 13
#   tests/debian/run.sh RELEASE COMMAND...       in the copy of the sources there, as root; exits as the command does
#   tests/debian/run.sh --root RELEASE           prints where that Debian lies
#
# The system is made once and kept under build/debian, or under KV_DEBIAN_ROOTS, with what was built there and its compiler
# cache. Remove the folder for a fresh one.
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() { printf 'debian: %s\n' "$*" >&2; exit 1; }
[ $# -gt 0 ] || fail 'no release given (see the first lines of this script)'
mode=run
case $1 in --check | --root) mode=${1#--} && shift ;; esac
release=${1:?release}
shift
case $release in
  12) codename=bookworm ;;
  13) codename=trixie ;;
  *) fail "no Debian $release is known here" ;;
esac
roots=${KV_DEBIAN_ROOTS:-$PWD/build/debian}
root=$roots/$codename
if [ "$mode" = root ]; then
  echo "$root"
  exit 0
fi

# The archive that this system's own release comes from: it has the others too. Empty if there is none.
mirror() {
  # shellcheck source=/dev/null
  (. /etc/os-release && [ "${ID:-}" = debian ] &&
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2> /dev/null |
    awk -v own="${VERSION_CODENAME:-}" '$2 == own && $3 == "main" { print $1; exit }')
}

can_run() {
  [ "$(id -u)" = 0 ] || { echo 'needs root, for chroot and mounts'; return 1; }
  command -v debootstrap > /dev/null || { echo 'debootstrap is not installed (deploy/install-dependencies.sh --debian)'; return 1; }
  [ -e "/usr/share/debootstrap/scripts/$codename" ] || { echo "this debootstrap knows no $codename"; return 1; }
  unshare --mount --pid --fork true 2> /dev/null || { echo 'mount and process namespaces are not allowed here'; return 1; }
  [ -e "$root/.complete" ] || [ -n "$(mirror)" ] || { echo "apt here names no Debian mirror"; return 1; }
}
why=$(can_run) || fail "Debian $release: $why"

make_root() {
  local from
  [ -e "$root/.complete" ] && return
  from=$(mirror)
  rm -rf "$root"
  mkdir -p "$root"
  debootstrap --variant=minbase --include=ca-certificates "$codename" "$root" "$from" > "$roots/$codename-debootstrap.log" 2>&1 ||
    { tail -n 3 "$roots/$codename-debootstrap.log" >&2; fail "Debian $release: could not be had from apt's mirror"; }
  # How this system reaches its mirror is how that one will.
  apt-config dump | grep -E '^Acquire::(http|https|Check-|Retries)' > "$root/etc/apt/apt.conf.d/99as-outside" || true
  touch "$root/.complete"
}
make_root
[ "$mode" = run ] || exit 0

# How this system reaches its package index is how that one will.
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/outside.crt"
  { echo '[global]' && echo 'cert = /etc/ssl/outside.crt'
    [ -z "${PIP_INDEX_URL:-}" ] || echo "index-url = $PIP_INDEX_URL"; } > "$root/etc/pip.conf"
fi

# Files that did not change keep their time, so that nothing is built twice.
mkdir -p "$root/kvstore/build" "$root/ccache"
mv "$root/kvstore/build" "$root/kvstore-build"
rm -rf "$root/kvstore"
mkdir "$root/kvstore"
tar -c --exclude=./build --exclude='./build-*' --exclude=./.git . | tar -x -C "$root/kvstore"
mv "$root/kvstore-build" "$root/kvstore/build"

# The mounts go with the namespace, whatever ends the command.
# shellcheck disable=SC2016
exec unshare --mount --pid --fork --kill-child bash -euc '
  root=$1
  shift
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount --rbind /sys "$root/sys" 2> /dev/null || true
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  exec chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
    CCACHE_DIR=/ccache bash -c "cd /kvstore && exec \"\$@\"" kvstore "$@"' enter "$root" "$@"
