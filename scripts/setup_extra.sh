#!/usr/bin/env bash
# setup_extra.sh EXTRA SIZE MODULE...: installs an extra of ours into .venv unless all its modules are there. Changes no pinned version.
set -euo pipefail
extra=$1 size=$2
shift 2
# Looked for, not imported: an import of OpenVINO may report to its makers, one of Ray takes seconds.
.venv/bin/python - "$@" <<'LOOK' && exit
import importlib.util, sys
sys.exit(any(importlib.util.find_spec(name) is None for name in sys.argv[1:]))
LOOK
echo "setup: installing the extra $extra into .venv (about $size)"
.venv/bin/python -m pip install -qq --no-compile --disable-pip-version-check -e ".[$extra]" -c constraints.txt
