#!/usr/bin/env bash
# The compiled core with GCC's address and undefined-behaviour sanitizers, under the tests that drive it.
# Everything is made in build/sanitize; the core that is installed stays as it is. Arguments go to pytest.
# KERNELS=one: only the kernel with this machine's widest vectors, which reach farthest beyond an end. The others are the
# same source with fewer lanes. BUILD_ONLY=1: no tests.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
kernels=${KERNELS:-all}
place=$PWD/build/sanitize/$kernels
# Checks of pointers that the address sanitizer makes as well are left out: they take most of the compiler's time.
sanitizers="-fsanitize=address,undefined -fno-sanitize=null,object-size,pointer-overflow,vptr -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
all_kernels=ON
if [ "$kernels" = one ]; then
  all_kernels=OFF
  sanitizers="$sanitizers -march=native"
fi

if [ $# -eq 0 ]; then
  set -- tests/engines/test_native_engine.py tests/engines/test_laws.py tests/engines/test_quadratic_programs.py tests/engines/test_streaming_engine.py tests/engines/test_adaptive_zeros.py tests/engines/test_batches.py tests/engines/test_bounds.py tests/counts/test_counts.py tests/fitting/test_solver.py tests/estimator/test_bad_input.py
fi

"$python" -m cmake -S . -B "$place/cmake" -G Ninja \
  -DCMAKE_MAKE_PROGRAM="$PWD/.venv/bin/ninja" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER="${CXX:-g++}" \
  -DCMAKE_CXX_FLAGS="$sanitizers" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1 -DNDEBUG" -DLOG1PNMF_KERNEL_LEVEL=-O0 \
  -DLOG1PNMF_ALL_KERNELS=$all_kernels -DPython_EXECUTABLE="$python" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" >/dev/null
"$python" -m cmake --build "$place/cmake" --target _core
[ -z "${BUILD_ONLY:-}" ] || exit 0

# A package of links to the sources, with the other core in it.
rm -rf "$place/site"
mkdir -p "$place/site/log1pnmf"
for entry in src/log1pnmf/*; do
  case $entry in *.so | *__pycache__) ;; *) ln -s "$PWD/$entry" "$place/site/log1pnmf/" ;; esac
done
cp "$place"/cmake/_core*.so "$place/site/log1pnmf/"
# The finder of the editable installation goes before every path; without it PYTHONPATH counts, in child processes too.
cat >"$place/site/sitecustomize.py" <<'PYTHON'
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"]
PYTHON

export PYTHONPATH=$place/site PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=passive OPENBLAS_NUM_THREADS=1
# Python itself keeps memory until it ends: leaks are not looked for.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
LD_PRELOAD="$("${CXX:-g++}" -print-file-name=libasan.so) $("${CXX:-g++}" -print-file-name=libstdc++.so)"
export LD_PRELOAD
"$python" -c "from log1pnmf import _core; assert '$place' in _core.__file__, _core.__file__; print('under test:', _core.__file__)"
exec "$python" -m pytest -q -p no:cacheprovider "$@"
