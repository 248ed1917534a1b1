"""`python -m outrider_models.card`: writes models/README.md, the model card, from the measured numbers.

Knows models/eval.json (what `evaluate` wrote) and each folder's training.json; adds no number of its own, so the card
cannot drift from what was measured.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from outrider_models.paths import MODEL_NAMES, MODELS_ROOT, model_dir

_INTRO = """# Reference models

Three small decoder-only models (Llama architecture, bf16 safetensors, one tokenizer) trained by us on text that
`outrider_models` writes, so that a target and a draft exist without any download. They are a test bed for
speculative decoding, not assistants: they know arithmetic stories, copying tasks and a meaningless prose.

This page is written by `python -m outrider_models.card` from `eval.json`; every number below was measured.

## How they were made

`make models` (= `python -m outrider_models.build`, resumable) trains the tokenizer, writes the text, trains all three,
evaluates them and writes this page. Text: arithmetic word problems (four operators, 0..999, three to six steps, one
step a line, `Answer: N`), copying tasks (edit a list, fill a JSON, repeat with a change), high-entropy prose, and for
training only drills (operations without a story), echoes (short things to repeat) and, first of all, repeats (random
tokens that come again, from which a model learns to copy). Sixteen names, and one or two sentences of every kind,
never occur in training; three in five of the names that do are made up, most of any letters, so that a name must be read.
Muon on the hidden matrices, AdamW elsewhere; the user's part
counts 0.02 in the loss, a drill from its first sign of equality on; documents attend only to themselves.
`python -m outrider_models.train NAME --help` explains every option; `--init-from models/NAME` continues from the committed weights.
"""


def main() -> None:
    """Write the card next to the models."""
    report = json.loads((MODELS_ROOT / "eval.json").read_text())
    parts = [_INTRO, _training_table(), *_accuracy_tables(report), _acceptance_table(report), _reading(report)]
    (MODELS_ROOT / "README.md").write_text("\n".join(parts).rstrip() + "\n")


def _training_table() -> str:
    rows = ["## Training", "", "| model | parameters | tokens | minutes | hardware | notes |", "|---|---|---|---|---|---|"]
    for name in MODEL_NAMES:
        record = _training_record(model_dir(name))
        rows.append(
            f"| {name} | {record['parameters'] / 1e6:.2f} M | {record['tokens'] / 1e6:.1f} M | {record['minutes']:.0f} "
            f"| {record['hardware']} | {record.get('notes', '')} |"
        )
    return "\n".join([*rows, ""])


def _training_record(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "training.json").read_text())
    return record


def _accuracy_tables(report: dict[str, Any]) -> list[str]:
    """One table for each split that the models share, a column a model."""
    names = [name for name in MODEL_NAMES if name in report]
    splits = [split for split in report[names[0]] if split != "step verdicts"]
    tables = [f"## Accuracy at temperature 0\n\n{report['num_problems']} problems a model, right answers in percent (of how many).\n"]
    for split in splits:
        keys = sorted({key for name in names for key in report[name].get(split, {})})
        rows = [f"### {split}", "", f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
        rows += [f"| `{key}` | {' | '.join(_percent(report[name].get(split, {}).get(key)) for name in names)} |" for key in keys]
        tables.append("\n".join([*rows, ""]))
    return tables


def _acceptance_table(report: dict[str, Any]) -> str:
    rows = [
        "## Acceptance", "",
        "Share of the positions of ref-large's own text at which the draft picks the same token under the same Gumbel noise.", "",
        "| task | temperature | draft | accepted |", "|---|---|---|---|",
    ]  # fmt: skip
    for row in report.get("acceptance", []):
        rows.append(f"| {row['task']} | {row['temperature']} | {row['draft']} | {_percent(row)} |")
    return "\n".join([*rows, ""])


def _reading(report: dict[str, Any]) -> str:
    """What the numbers mean against the targets, in words that follow from them."""
    rows = ["## Against the targets", ""]
    targets = {"ref-large": (0.90, 1.0), "ref-medium": (0.20, 1.0), "ref-small": (0.20, 0.70)}
    for name in MODEL_NAMES:
        if name in report:
            share = report[name]["answers"]["all held out"]["share"]
            low, high = targets[name]
            verdict = "met" if low <= share <= high else "MISSED"
            rows.append(f"- {name}: {share:.1%} right on held-out names and sentences; wanted {low:.0%} to {high:.0%}: {verdict}.")
    return "\n".join([*rows, ""])


def _percent(share: dict[str, Any] | None) -> str:
    return "" if share is None else f"{100 * share['share']:.1f} ({share['all']})"


if __name__ == "__main__":
    main()
