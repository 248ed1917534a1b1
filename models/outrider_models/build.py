"""`python -m outrider_models.build`: the whole pipeline, from nothing to evaluated models; each stage resumes.

Knows the order of the stages and what is already done; each stage's work is in its own module.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from tokenizers import Tokenizer

from outrider_models.corpus import CORPUS_SEED, build_document_set, write_documents
from outrider_models.paths import MODEL_NAMES, MODELS_ROOT, corpus_dir, model_dir
from outrider_models.tokenizer import save_tokenizer, train_tokenizer

STAGES = ("tokenizer", "corpus", "train", "evaluate")
_NUM_DOCUMENTS = {"arithmetic": 90_000, "drill": 20_000, "echo": 20_000, "copying": 12_000, "prose": 9_000}
_TOKENIZER_DOCUMENTS = {"arithmetic": 15_000, "drill": 200, "copying": 6_000, "prose": 6_000}
_TOKENIZER_SEED = 1
_DEFAULT_MINUTES = {"ref-large": 84.0, "ref-medium": 20.0, "ref-small": 12.0}
_BEGINS_AS = {"ref-medium": "ref-large"}  # layers of that one
_ORDER = "ref-small,ref-large,ref-medium"
_DESCRIPTION = """
Make the reference models: tokenizer, training text, three trainings, evaluation.

What is already there is kept: the tokenizer and the corpus are built once, a training continues from its last
checkpoint, and Ctrl-C loses at most four minutes. On two cores without bf16 units ref-large needs about 85 minutes,
ref-medium, which begins as layers of ref-large, 20 and ref-small 12; on a GPU (--device cuda --autocast bf16) a few
minutes in all.
"""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What was asked for."""

    models: tuple[str, ...]
    minutes: dict[str, float]
    workers: int
    device: str
    autocast: str
    fresh: bool


def main() -> None:
    """Run the stages in order, or only one of them."""
    arguments = build_parser().parse_args()
    minutes = {name: arguments.budget_minutes or _DEFAULT_MINUTES[name] for name in MODEL_NAMES}
    plan = _Plan(tuple(arguments.models.split(",")), minutes, arguments.workers, arguments.device, arguments.autocast, arguments.fresh)
    work: dict[str, Callable[[_Plan], None]] = {
        "tokenizer": _build_tokenizer, "corpus": _build_corpus, "train": _train, "evaluate": _evaluate,
    }  # fmt: skip
    for stage in STAGES if arguments.only is None else (arguments.only,):
        print(f"== {stage}", flush=True)
        work[stage](plan)


def build_parser() -> argparse.ArgumentParser:
    """The options, with what each is good for."""
    parser = argparse.ArgumentParser(
        prog="python -m outrider_models.build",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", choices=STAGES, help="run one stage instead of all")
    add("--models", default=_ORDER, help="comma-separated, in training order; default %(default)s")
    add("--budget-minutes", type=float, help="training minutes for each model instead of its default (84, 20, 12)")
    add("--workers", type=int, default=2, help="training threads, one core each; default 2")
    add("--device", default="cpu", help="cpu or cuda; default cpu")
    add("--autocast", choices=("none", "bf16"), default="none", help="bf16 on AMX CPUs and GPUs; default none")
    add("--fresh", action="store_true", help="retrain from noise even where a checkpoint exists")
    return parser


def _build_tokenizer(plan: _Plan) -> None:
    if all((model_dir(name) / "tokenizer.json").exists() for name in MODEL_NAMES):
        print("kept: every model folder has its tokenizer")
        return
    texts = chain.from_iterable(write_documents(kind, num, _TOKENIZER_SEED) for kind, num in _TOKENIZER_DOCUMENTS.items())
    tokenizer = train_tokenizer(texts)
    for name in MODEL_NAMES:
        save_tokenizer(tokenizer, model_dir(name))


def _build_corpus(plan: _Plan) -> None:
    tokenizer = Tokenizer.from_file(str(model_dir(MODEL_NAMES[0]) / "tokenizer.json"))
    for kind, num in _NUM_DOCUMENTS.items():
        if (corpus_dir() / f"{kind}.ends").exists():
            print(f"kept: {kind}")
            continue
        build_document_set(kind, num, CORPUS_SEED, tokenizer, corpus_dir())
        print(f"wrote {num} {kind} documents", flush=True)


def _train(plan: _Plan) -> None:
    for name in plan.models:
        options = ["--budget-minutes", str(plan.minutes[name]), "--workers", str(plan.workers), "--late-rows", "16"]
        options += ["--device", plan.device, "--autocast", plan.autocast] + (["--fresh"] if plan.fresh else [])
        if name in _BEGINS_AS:
            options += ["--init-from", str(model_dir(_BEGINS_AS[name]))]
        if plan.device == "cuda":
            options += ["--micro-rows", "16", "--workers", "1"]
        subprocess.run([sys.executable, "-m", "outrider_models.train", name, *options], check=True)


def _evaluate(plan: _Plan) -> None:
    out = str(MODELS_ROOT / "eval.json")
    subprocess.run([sys.executable, "-m", "outrider_models.evaluate", "--threads", str(plan.workers), "--out", out], check=True)
    subprocess.run([sys.executable, "-m", "outrider_models.card"], check=True)


if __name__ == "__main__":
    main()
