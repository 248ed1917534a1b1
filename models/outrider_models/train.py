"""Command line of one training run: `python -m outrider_models.train ref-small --budget-minutes 10`.

Knows options and their meaning; the run itself is `training`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from outrider_models.batches import Curriculum
from outrider_models.optimizer import Rates
from outrider_models.paths import MODEL_NAMES
from outrider_models.schedule import Budget
from outrider_models.training import RunOptions, train

_EPILOG = """
Rerunning the same command continues from the last checkpoint, and a run whose budget is spent only exports.
A larger budget on a finished run continues with the rate that the new budget implies.
The corpus must exist: `python -m outrider_models.build --only corpus` writes it.
"""


def main() -> None:
    """Parse and train."""
    arguments = build_parser().parse_args()
    torch.set_num_threads(1)
    train(
        RunOptions(
            name=arguments.name,
            budget=Budget(arguments.budget_minutes, int(arguments.budget_tokens * 1e6), arguments.decay),
            rates=Rates(matrix=arguments.rate),
            curriculum=Curriculum(arguments.repeats, arguments.start),
            rows=arguments.rows,
            late_rows=arguments.late_rows or arguments.rows,
            num_workers=arguments.workers,
            micro_rows=arguments.micro_rows,
            seed=arguments.seed,
            device=arguments.device,
            autocast={"none": None, "bf16": torch.bfloat16}[arguments.autocast],
            init_from=arguments.init_from,
            checkpoint_minutes=arguments.checkpoint_minutes,
            snapshot_minutes=arguments.snapshot_minutes,
            fresh=arguments.fresh,
        )
    )


def build_parser() -> argparse.ArgumentParser:
    """The options, with what each is good for."""
    parser = argparse.ArgumentParser(
        prog="python -m outrider_models.train",
        description="Train one reference model from scratch or from its last checkpoint.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("name", choices=MODEL_NAMES, help="which model; its folder under models/ receives the weights")
    add("--budget-minutes", type=float, default=80.0, help="training time in all, resumed parts included; default 80")
    add("--budget-tokens", type=float, default=30.0, help="millions of tokens in all, if reached first; default 30")
    add("--decay", type=float, default=0.5, help="last share of the budget in which the rate falls to 0; default 0.5")
    add("--rate", type=float, default=0.02, help="peak Muon rate of the hidden matrices; default 0.02")
    add("--repeats", type=float, default=0.12, help="share of the budget at the start that only repeats random tokens; default 0.12")
    add("--start", type=float, default=0.75, help="share of the budget in which the copying-heavy start mixture fades; default 0.75")
    add("--rows", type=int, default=8, help="rows of 512 tokens in a batch; default 8")
    add("--late-rows", type=int, default=0, help="rows once a third of the budget is spent; default: as --rows")
    add("--workers", type=int, default=1, help="threads, one core each; they meet once a batch; default 1")
    add("--micro-rows", type=int, default=2, help="rows in one forward; raise it on a GPU; default 2")
    add("--seed", type=int, default=0, help="initial weights and order of the text; default 0")
    add("--device", default="cpu", help="cpu or cuda; default cpu")
    add("--autocast", choices=("none", "bf16"), default="none", help="bf16 pays on AMX CPUs and GPUs only; default none")
    add("--init-from", type=Path, help="start from the weights of this folder, evenly spaced layers of a deeper model, not from noise")
    add("--checkpoint-minutes", type=float, default=4.0, help="minutes between checkpoints; default 4")
    add("--snapshot-minutes", type=float, default=20.0, help="minutes between usable exports on the way; default 20")
    add("--fresh", action="store_true", help="ignore an existing checkpoint")
    return parser


if __name__ == "__main__":
    main()
