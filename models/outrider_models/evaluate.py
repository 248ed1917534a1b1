"""`python -m outrider_models.evaluate`: accuracy and acceptance of the exported models, on held-out problems.

Knows which numbers belong in models/eval.json and prints them; how each is measured is in `scores` and `acceptance`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer

from outrider_models.acceptance import Model, measure_acceptance
from outrider_models.export import load_weights
from outrider_models.paths import MODEL_NAMES, MODELS_ROOT, model_dir
from outrider_models.scores import Share, Splits, answer_tasks, score_arithmetic, score_copying
from outrider_models.shapes import SHAPES
from outrider_models.tasks import TASK_KINDS, make_tasks

EVALUATION_SEED = 77
TEMPERATURES = (0.0, 0.8, 1.0)
_TARGET, _DRAFTS = "ref-large", ("ref-small", "ref-medium")


def main() -> None:
    """Parse, measure, write, print."""
    arguments = build_parser().parse_args()
    torch.set_num_threads(arguments.threads)
    names = arguments.models.split(",")
    tokenizer = Tokenizer.from_file(str(model_dir(names[0]) / "tokenizer.json"))
    models = {name: Model(load_weights(model_dir(name)), SHAPES[name]) for name in names}
    report: dict[str, object] = {"seed": EVALUATION_SEED, "num_problems": arguments.problems}
    for name, model in models.items():
        report[name] = _accuracy(name, model, tokenizer, arguments.problems)
    if _TARGET in models and not arguments.no_acceptance:
        drafts = {name: models[name] for name in _DRAFTS if name in models}
        report["acceptance"] = _acceptance(models[_TARGET], drafts, tokenizer, arguments.acceptance_tasks)
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


def build_parser() -> argparse.ArgumentParser:
    """The options, with what each is good for."""
    parser = argparse.ArgumentParser(
        prog="python -m outrider_models.evaluate",
        description="Measure the exported reference models on problems, names and sentences kept out of training.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--models", default=",".join(MODEL_NAMES), help="comma-separated folders to measure")
    add("--problems", type=int, default=400, help="problems a model answers, half with held-out names and sentences; copying: a quarter")
    add("--acceptance-tasks", type=int, default=32, help="tasks of each kind at each temperature")
    add("--no-acceptance", action="store_true", help="accuracy only")
    add("--threads", type=int, default=1, help="torch threads")
    add("--out", type=Path, help=f"write the numbers here as JSON, for instance {MODELS_ROOT.name}/eval.json")
    return parser


def _accuracy(name: str, model: Model, tokenizer: Tokenizer, num_problems: int) -> dict[str, dict[str, object]]:
    began_s = time.monotonic()
    splits: Splits = {"answers": {}}
    for held_out in (False, True):
        problems = make_tasks("arithmetic", num_problems // 2, EVALUATION_SEED, held_out)
        found = score_arithmetic(problems, answer_tasks(model.weights, model.shape, tokenizer, problems))
        answers = found.pop("answers")
        splits["answers"]["all held out" if held_out else "new problems, known names and sentences"] = answers["all"]
        if held_out:
            splits["answers"]["held-out names, known sentences"] = answers.get("only known sentences", Share(0, 0))
            splits["answers"]["held-out names, some sentence held out"] = answers.get("some sentence held out", Share(0, 0))
        _merge(splits, found)
    copies = make_tasks("copying", max(1, num_problems // 4), EVALUATION_SEED, held_out=True)
    splits |= score_copying(copies, answer_tasks(model.weights, model.shape, tokenizer, copies))
    print(f"\n{name}: {num_problems} problems in {time.monotonic() - began_s:.0f} s")
    _print_splits(splits)
    return {split: {key: _as_json(share) for key, share in rows.items()} for split, rows in splits.items()}


def _merge(splits: Splits, more: Splits) -> None:
    for split, rows in more.items():
        mine = splits.setdefault(split, {})
        for key, share in rows.items():
            old = mine.get(key, Share(0, 0))
            mine[key] = Share(old.num_right + share.num_right, old.num_all + share.num_all)


def _acceptance(target: Model, drafts: dict[str, Model], tokenizer: Tokenizer, num: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    print("\nacceptance under shared noise, on the target's own text")
    for kind in TASK_KINDS:
        tasks = make_tasks(kind, num, EVALUATION_SEED + 1, held_out=True)
        for temperature in TEMPERATURES:
            found = measure_acceptance(target, drafts, tokenizer, tasks, temperature, EVALUATION_SEED)
            for name, share in found.items():
                rows.append({"task": kind, "temperature": temperature, "draft": name, **_as_json(share)})
                print(f"  {kind:10s} T={temperature:<4} {name:10s} {share.value:6.1%} of {share.num_all}", flush=True)
    return rows


def _print_splits(splits: Splits) -> None:
    for split, rows in splits.items():
        print(f"  {split}")
        for key, share in rows.items():
            print(f"    {key:28s} {share.value:6.1%}  ({share.num_right}/{share.num_all})")
    sys.stdout.flush()


def _as_json(share: Share) -> dict[str, object]:
    return {"right": share.num_right, "all": share.num_all, "share": round(share.value, 4)}


if __name__ == "__main__":
    main()
