"""The card: is there one, will an engine run its own kernels on it, and will small steps be recorded?

Knows the engine's own rule for that (engine/card_way.py), which is imported only here and only now. Must not load a model.
"""

from __future__ import annotations

from outrider.cli.checks.finding import Finding, broken, fine, note


def check_card() -> Finding:
    """What `--device cuda` would do here."""
    try:
        import torch

        from outrider.engine.card_way import NO_TRITON, card_problem
    except (ImportError, OSError) as error:
        return broken("card", f"torch cannot be imported: {error}", "reinstall it: `make setup` in the repository, or `pip install -e .`")
    if not torch.cuda.is_available():
        return fine("card", "torch sees no CUDA GPU: engines run on the processor")
    device = torch.device("cuda", torch.cuda.current_device())
    name, gib = torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device).total_memory / 2**30
    found = f"{name}, {gib:.0f} GiB"
    problem = card_problem(device)
    if problem is None:
        recorded = "Triton kernels, small steps recorded as graphs (fast numerics, lean engine)"
        return fine("card", f"{found}: with --device cuda, {recorded}")
    remedy = (
        "install the extra: pip install 'outrider[triton]'" if problem == NO_TRITON else "nothing: plain torch operations serve it, slower"
    )
    return note("card", f"{found}: --device cuda would run on plain torch operations, because {problem}", remedy)
