#!/usr/bin/env bash
# Generates Python stubs of proto/ under the folder given as the only argument (services: the committed ones). The version of
# grpcio-tools is pinned in pyproject.toml, so the output is the same byte for byte everywhere.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=$(realpath "$1")
cd "$root/proto"
"${PYTHON:-$root/.venv/bin/python}" -m grpc_tools.protoc -I . --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" outrider/v1/*.proto
