#!/usr/bin/env bash
# Installs the extra `peers` into .venv unless it is there: OpenVINO GenAI, for `outrider bench peers` only. Changes no pinned version.
set -euo pipefail
.venv/bin/python -c 'import openvino, openvino_genai, openvino_tokenizers' 2>/dev/null && exit
echo "setup: installing the extra peers into .venv (OpenVINO GenAI, about 200 MB)"
.venv/bin/python -m pip install -qq --no-compile --disable-pip-version-check -e '.[peers]' -c constraints.txt
