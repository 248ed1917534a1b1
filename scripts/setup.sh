#!/usr/bin/env bash
# Creates .venv, or brings it up to pyproject.toml and constraints.txt, and then touches the stamp given as the only argument.
# pip, not uv: pip takes the build of torch that the machine's configuration offers. Bytecode is left to the first import.
set -euo pipefail
stamp=$1
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "setup: Python 3.11 or newer is needed, $("$python" --version) is here; set PYTHON=..." >&2; exit 1; }
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    echo "setup: creating .venv"
    "$python" -m venv --clear .venv
fi
echo "setup: installing what constraints.txt pins into .venv (a minute or two the first time)"
.venv/bin/python -m pip install -qq --disable-pip-version-check pip -c constraints.txt
.venv/bin/python -m pip install -qq --no-compile --disable-pip-version-check torch==2.13.0 -e '.[dev,redis]' -c constraints.txt
# Some machines forbid bytecode by environment; then every process would compile torch and us anew. These imports write what is used most.
PYTHONDONTWRITEBYTECODE='' .venv/bin/python -c 'import torch, transformers, grpc, rich.console, jinja2.sandbox, pytest, scipy.stats, hypothesis
import matplotlib.pyplot, redis.asyncio
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
import drafter_service.__main__, pair_service.__main__, machine_service.__main__, outrider.cli.__main__, outrider.coordinator.__main__, outrider.gateway.__main__
import outrider.engine.int8_reference, outrider.engine.lean_engine, prometheus_client.exposition, triton.compiler'
touch "$stamp"
echo "setup: done in ${SECONDS} s"
