#!/bin/sh
# Builds the kernels of lib/gpu for the CPU and runs the checks beside this. Needs g++ and CUDA's headers, no GPU.
#     tests/gpu/emulation/run.sh [flags for the compiler, as -fsanitize=address]
set -eu
root=$(cd "$(dirname "$0")/../../.." && pwd)
here=$root/tests/gpu/emulation
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
# __HIPCC__ opens what lib/gpu shows to device compilers only; the folder here stands before lib, so that its launch.h and
# fragment.h take the place of the real ones.
compile() {
  shared=$1 source=$2
  shift 2
  g++ -std=c++20 -O1 -g -w -include "$here/gpu/launch.h" -D__HIPCC__=1 -DKNNCONV_SHARED="$shared" -I"$here" -I"$root/lib" \
    -isystem "${CUDA_HOME:-/usr/local/cuda}/include" "$@" -x c++ -c "$source" -o "$build/$(basename "$source").o"
}
for source in "$root"/lib/gpu/tap_gemm_*.cu "$root/lib/gpu/tap_gemm.cc" "$root"/lib/gpu/halo*.cu "$root"/lib/gpu/halo*.cc \
  "$root"/lib/gpu/stem*.cu "$root"/lib/gpu/stem.cc \
  "$here"/check*.cc; do
  compile "" "$source" "$@"
done
for source in hub_sums dweight_reduce; do compile static "$root/lib/gpu/$source.cu" "$@"; done
for check in check check_halo_dweight; do
  others=$(ls "$build"/*.o | grep -v /check)
  g++ "$@" "$build/$check.cc.o" $others -o "$build/$check"
  "$build/$check"
done
