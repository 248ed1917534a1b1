#!/usr/bin/env bash
# Installs the extra `peers` into .venv unless it is there: OpenVINO GenAI, for `outrider bench peers` only. Changes no pinned version.
set -euo pipefail
# Looked for, not imported: an import of OpenVINO may report to its makers.
.venv/bin/python - <<'LOOK' && exit
import importlib.util, sys
sys.exit(any(importlib.util.find_spec(name) is None for name in ("openvino", "openvino_genai", "openvino_tokenizers")))
LOOK
echo "setup: installing the extra peers into .venv (OpenVINO GenAI, about 200 MB)"
.venv/bin/python -m pip install -qq --no-compile --disable-pip-version-check -e '.[peers]' -c constraints.txt
