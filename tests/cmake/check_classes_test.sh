#!/usr/bin/env bash
# cmake/check_classes finds a second class of one name, and takes none for one that is not.
set -euo pipefail
script=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

mkdir -p "$scratch/gpu" "$scratch/client/link"
printf 'namespace kv {\n\nclass Staging {\n};\nclass Later;\n\n}  // namespace kv\n' > "$scratch/gpu/staging.h"
printf 'namespace kv {\nnamespace {\nstruct Staging {\n};\n}  // namespace\n\nstruct Outer::Staging {\n};\n\n}  // namespace kv\n' > "$scratch/client/own.cc"
printf 'namespace kv::verbs {\nclass Staging final : public Later {\n};\n}  // namespace kv::verbs\n' > "$scratch/client/verbs.h"
"$script" "$scratch" || fail 'it took classes of different names for one'
printf 'namespace kv {\nclass Staging final {\n};\n}  // namespace kv\n' > "$scratch/client/link/staging.h"
status=0
said=$("$script" "$scratch") || status=$?
[ "$status" = 1 ] || fail "status $status with two classes of one name"
[ "$said" = 'kv::Staging is defined in gpu/staging.h:3 and client/link/staging.h:2: give one another name, or an unnamed namespace' ] || fail "it said: $said"
status=0
"$script" "$scratch/nowhere" 2> /dev/null || status=$?
[ "$status" = 2 ] || fail "status $status without a source file"
