# The newcomer's way in: `make` lists what there is. Every recipe is at most three lines; longer ones live in scripts/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

PY := .venv/bin/python
STAMP := .venv/.installed

# PROMPT, TARGET and DRAFT reach the recipes untouched by make (no expansion of $), from the environment or from the command line.
ifdef PROMPT
override export PROMPT := $(value PROMPT)
endif
ifdef TARGET
override export TARGET := $(value TARGET)
endif
ifdef DRAFT
override export DRAFT := $(value DRAFT)
endif

##@ Use it
help: ## this list
	@awk -f scripts/help.awk $(MAKEFILE_LIST)

run: $(STAMP) ## serve the reference pair, stream one answer, compare with plain decoding (PROMPT=... TARGET=... DRAFT=...)
	@.venv/bin/outrider run $${PROMPT:+--prompt="$$PROMPT"} $${TARGET:+--target="$$TARGET"} $${DRAFT:+--draft="$$DRAFT"}

bench: $(STAMP) ## baselines, policies, one process, simulator, two machines; 20 minutes; last line RESULT {json} (TARGET=... DRAFT=...)
	@.venv/bin/outrider bench $${TARGET:+--target="$$TARGET"} $${DRAFT:+--draft="$$DRAFT"}

bench-peers: $(STAMP) ## the same prompts through OpenVINO GenAI too; installs the extra `peers`, 200 MB (TARGET=... DRAFT=...)
	@scripts/setup_extra.sh peers "200 MB" openvino openvino_genai openvino_tokenizers
	@.venv/bin/outrider bench peers $${TARGET:+--target="$$TARGET"} $${DRAFT:+--draft="$$DRAFT"}

bench-gpu: $(STAMP) ## on a CUDA card: our Triton kernels against its measured ceilings, then the full stack; lines RESULT {json}
	@$(PY) kernels/benchmarks/bench_triton_tree_attention.py
	@set -e; for name in pieces compact pick filtered_pick pick_walk rejection; do $(PY) kernels/benchmarks/bench_triton_$$name.py; done
	@.venv/bin/outrider bench gpu

chaos: $(STAMP) ## 200 faults (kills, stops, drains, cut and slow links) under 16 requests at a time: nothing lost, no token different
	@.venv/bin/outrider bench chaos

doctor: $(STAMP) ## what is wrong with this installation, and the remedy
	@.venv/bin/outrider doctor

##@ Change it
test: check ## the checks below, then every test of the default run, in two halves at a time (6 to 10 minutes on two cores)
	@$(PY) tests/side_by_side.py

test-all: check ## the same plus the tests marked slow; installs the extra `ray`, 200 MB
	@scripts/setup_extra.sh ray "200 MB" ray aiohttp
	@$(PY) -m pytest --ignore=tests/house -m ''

check: $(STAMP) ## lint, format, types, and the tests about the repository itself
	@.venv/bin/ruff check . && .venv/bin/ruff format --check .
	@.venv/bin/mypy
	@$(PY) -m pytest tests/house

##@ Make it
proto: $(STAMP) ## regenerate services/outrider/v1 from proto/
	@scripts/generate_stubs.sh services

models: $(STAMP) ## write the corpus and train the reference models (hours on two cores, minutes on a GPU; resumes)
	@$(PY) -m outrider_models.build

##@ Keep it
setup: $(STAMP) ## create or update .venv; the targets above do it themselves

clean: ## remove caches and build leftovers (.venv and models/checkpoints stay)
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .outrider
	@find . -name .venv -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@scripts/setup.sh $@

.PHONY: help run bench bench-peers bench-gpu chaos doctor test test-all check proto models setup clean
