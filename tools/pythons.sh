#!/usr/bin/env bash
# Prints the path of one working Python of every supported minor version other than that of .venv, from PATH and pyenv.
set -euo pipefail
own=$("$(dirname "$0")/../.venv/bin/python" -c 'import sys; print(*sys.version_info[:2], sep=".")')
for version in 3.10 3.11 3.12 3.13 3.14; do
  [ "$version" = "$own" ] && continue
  for candidate in "$(command -v "python$version" || true)" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
    if [ -x "$candidate" ] && found=$("$candidate" -c 'import sys, venv, ensurepip; print(sys.executable)' 2>/dev/null); then
      echo "$found"
      break
    fi
  done
done
