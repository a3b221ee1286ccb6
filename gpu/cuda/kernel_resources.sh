#!/bin/sh
# gpu/cuda/kernel_resources.sh: compiled size of each kernel, as the table of docs/kernels.md. Needs nvcc, no device. Minutes for each
# architecture.
#
#   gpu/cuda/kernel_resources.sh [ARCHITECTURE...]     80 90 100 120 unless told
#
# Registers of a thread, bytes of its stack and of spills (stores, loads), shared memory of a block of 256 threads, and the share of a
# processor's threads that such blocks fill, limited by registers (65,536 a processor, in 256s for each warp) and threads (2,048; 1,536 on
# sm_120).
set -eu
root=$(dirname "$(dirname "$(dirname "$(realpath "$0")")")")
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
[ $# -gt 0 ] || set -- 80 90 100 120
for architecture in "$@"; do
  "$nvcc" -std=c++20 -O3 --expt-relaxed-constexpr -I"$root" -arch="sm_$architecture" -Xptxas -v -cubin \
    -o "$out/permute.cubin" "$root/gpu/cuda/permute.cu" 2> "$out/$architecture.log" || { cat "$out/$architecture.log" >&2; exit 1; }
done
echo '| kernel | sm | registers | stack | spills | shared | threads of a processor |'
echo '| --- | --- | --- | --- | --- | --- | --- |'
for architecture in "$@"; do
  awk -v sm="$architecture" '
    function name_of(symbol, made) {
      made = symbol ~ /checksum_kernel/ ? "checksums" : symbol ~ /keep_kernel/ ? "compressed rows" : ""
      if (symbol ~ /DeviceBodyE0E/) made = "wide copy"
      if (symbol ~ /DeviceBodyE1E/) made = "copy"
      if (symbol ~ /DeviceBodyE2E/) made = "transposition"
      if (symbol ~ /DeviceBodyE3E/) made = "cast"
      if (symbol ~ /DeviceBodyE4E/) made = "rotate"
      if (symbol ~ /DeviceBodyE5E/) made = "quantise"
      if (symbol ~ /VerifiedDevicePlan/) return made ", verified"
      if (symbol ~ /ILi10ELi1024E/) return made ", any plan"
      return made
    }
    /Compiling entry function/ { split($0, part, "\047"); kernel = name_of(part[2]) }
    /bytes stack frame/ && kernel != "" { stack = $1; stores = $5; loads = $9 }
    /Used [0-9]+ registers/ && kernel != "" {
      match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5)
      shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH - 11) : 0
      threads = sm == 120 ? 1536 : 2048
      warps = int(65536 / (int((registers * 32 + 255) / 256) * 256)); blocks = int(warps / 8)
      if (blocks > threads / 256) blocks = threads / 256
      printf "| %s | %s | %s | %s | %s, %s | %s | %d %% |\n", kernel, sm, registers, stack, stores, loads, shared, 100 * blocks * 256 / threads
      kernel = ""
    }' "$out/$architecture.log"
done | sort -s -t '|' -k 2,2
