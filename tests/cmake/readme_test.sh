#!/usr/bin/env bash
# The README's C program compiles, and the commands below it do what stands beside them: a stranger copies just these.
#   readme_test.sh SOURCE-DIRECTORY BUILD-DIRECTORY
set -euo pipefail
source=$1 build=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

# Other places for the README's own, so that tests can run side by side, on any build.
sed "s|\$PWD/||g; s|/tmp/|$scratch/|g; s|build/release|$build|g" "$source/README.md" > "$scratch/README.md"
{
  echo "trap 'kill \$(jobs -p) 2> /dev/null || true' EXIT"  # a command that fails leaves no node behind
  sed -n '/^## Use it$/,/^## From Python$/s/^    //p' "$scratch/README.md" | sed -n "/^sed /,\$p" | sed "s|README.md|$scratch/README.md|"
} > "$scratch/commands.sh"
(cd "$source" && timeout 120 bash -e "$scratch/commands.sh") > "$scratch/out" 2>&1 || { cat "$scratch/out" >&2; fail 'a command of the README'; }

promised=$(grep -oE '# [0-9]+ of [0-9]+ blocks .*' "$scratch/commands.sh" | sed 's/^# //') || fail 'the README promises nothing'
printed=$(grep -E '^[0-9]+ of [0-9]+ blocks ' "$scratch/out") || { cat "$scratch/out" >&2; fail 'the program says nothing'; }
[ "$promised" = "$printed" ] || fail "the README says '$promised', its program '$printed'"
echo "readme_test: $(wc -l <<< "$printed") lines as the README has them"
