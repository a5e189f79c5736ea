#!/usr/bin/env bash
# Prints the path of a working Python of each supported minor version except that of .venv, or of each version named.
# Looks in PATH, in pyenv's folder, and in build/, where tools/install_python.sh unpacks one.
set -euo pipefail
cd "$(dirname "$0")/.."
own=""
if [ $# = 0 ]; then
  set -- 3.10 3.11 3.12 3.13 3.14
  own=$(.venv/bin/python -c 'import sys; print(*sys.version_info[:2], sep=".")')
fi
for version in "$@"; do
  [ "$version" = "$own" ] && continue
  for candidate in "$(command -v "python$version" || true)" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python \
    "$PWD/build/python$version/bin/python$version"; do
    if [ -x "$candidate" ] && found=$("$candidate" -c 'import sys, venv, ensurepip; print(sys.executable)' 2>/dev/null); then
      echo "$found"
      break
    fi
  done
done
