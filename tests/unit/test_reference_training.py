"""Training parts on tiny inputs: packing, schedule, optimizer, gradients, and resuming exactly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

import outrider_models.training as training
from outrider_models.batches import USER_PART_WEIGHT, Curriculum, Packer, Row
from outrider_models.corpus import DOCUMENT_KINDS, build_document_set, open_document_set
from outrider_models.gradient import GradientPool
from outrider_models.network import forward, init_weights, rotary_tables
from outrider_models.optimizer import Optimizer, Rates, is_hidden_matrix, orthogonalize
from outrider_models.paths import model_dir
from outrider_models.schedule import Budget
from outrider_models.shapes import SHAPES, Shape
from outrider_models.training import RunOptions, train

TINY = Shape(hidden=32, num_layers=2, num_heads=2, num_kv_heads=1, mlp=48, tied=True, head_dim=16)
CPU = torch.device("cpu")


@pytest.fixture(scope="module", name="corpus")
def _corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    tokenizer = Tokenizer.from_file(str(model_dir("ref-small") / "tokenizer.json"))
    for kind in DOCUMENT_KINDS:
        build_document_set(kind, 30, 1, tokenizer, folder)
    return folder


def _pool(executor: ThreadPoolExecutor, num_workers: int, micro_rows: int) -> GradientPool:
    return GradientPool(executor, TINY, rotary_tables(256, TINY.head_dim, CPU), num_workers, micro_rows, None)


def test_rows_are_full_aligned_and_depend_on_position_only(corpus: Path) -> None:
    packer = Packer(corpus, 256, 3, Curriculum())
    rows = packer.batch(5, 4, progress=0.5)
    for row in rows:
        assert len(row.inputs) == len(row.targets) == len(row.loss_weights) == sum(row.lengths) == 256
        begin = 0
        for length in row.lengths:  # inside a document the target is the next input
            assert (row.inputs[begin + 1 : begin + length] == row.targets[begin : begin + length - 1]).all()
            begin += length
    again = Packer(corpus, 256, 3, Curriculum()).batch(5, 4, progress=0.5)
    assert all((a.inputs == b.inputs).all() for a, b in zip(rows, again, strict=True))
    assert any((a.inputs != b.inputs).any() for a, b in zip(rows, packer.batch(6, 4, progress=0.5), strict=True))


def test_training_begins_with_repeats_and_only_what_is_predictable_counts_fully(corpus: Path) -> None:
    packer = Packer(corpus, 256, 3, Curriculum(repeats=0.2))
    for row in packer.batch(0, 4, progress=0.1):
        assert len(row.inputs) == sum(row.lengths) == 256
        begin = 0
        for length in row.lengths[:-1]:  # the last is cut
            targets, weights = row.targets[begin : begin + length], row.loss_weights[begin : begin + length]
            once = int((weights < 1.0).sum())
            assert length in (2 * once, 3 * once)
            assert (targets[once:] == targets[:-once]).all()
            begin += length
    assert len(packer.batch(0, 4, progress=0.3)[0].lengths) < 8  # documents again


def test_documents_laid_end_to_end_do_not_see_each_other() -> None:
    weights, tables = _noisy_weights(), rotary_tables(64, TINY.head_dim, CPU)
    first, second = torch.randint(0, TINY.vocab, (20,)), torch.randint(0, TINY.vocab, (31,))
    together = forward(weights, TINY, torch.cat((first, second)), [20, 31], tables)
    alone = forward(weights, TINY, second, [31], tables)
    torch.testing.assert_close(together[20:], alone, rtol=1e-4, atol=1e-4)


def test_workers_and_micro_rows_do_not_change_the_gradient(corpus: Path) -> None:
    weights = {name: weight.requires_grad_() for name, weight in _noisy_weights().items()}
    batch = Packer(corpus, 256, 0, Curriculum()).batch(0, 4, progress=1.0)
    with ThreadPoolExecutor(2) as executor:
        whole = _pool(executor, 1, 4).compute(weights, batch)
        split = _pool(executor, 2, 1).compute(weights, batch)
    assert whole.loss == pytest.approx(split.loss, rel=1e-5)
    for name in weights:
        torch.testing.assert_close(whole.by_name[name], split.by_name[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("size", [(8, 8), (7, 19), (33, 5)])
def test_orthogonalized_matrices_have_singular_values_near_one(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(size) * 3, iterations=8))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_optimizer_learns_one_batch(corpus: Path) -> None:
    weights = {name: weight.requires_grad_() for name, weight in init_weights(TINY, 0).items()}
    batch = Packer(corpus, 256, 0, Curriculum()).batch(0, 2, progress=1.0)
    optimizer = Optimizer(weights, Rates())
    assert {name for name in weights if not is_hidden_matrix(name, weights[name])} == set(optimizer.second)
    with ThreadPoolExecutor(1) as executor:
        losses = []
        for _ in range(40):
            gradients = _pool(executor, 1, 2).compute(weights, batch)
            optimizer.step(gradients.by_name, 1.0, executor)
            losses.append(gradients.loss)
    assert losses[-1] < 0.5 * losses[0]


def test_schedule_warms_up_holds_and_falls_to_zero() -> None:
    budget = Budget(minutes=10, tokens=1000, decay_share=0.5)
    assert budget.progress(5, 100) == 0.5
    assert budget.progress(1, 900) == 0.9
    assert budget.progress(99, 0) == 1.0
    assert 0 < budget.rate_scale(0.0) < 0.2
    assert budget.rate_scale(0.3) == 1.0
    assert budget.rate_scale(0.75) == 0.5
    assert budget.rate_scale(1.0) == 0.0


def test_an_interrupted_run_ends_with_the_weights_of_an_uninterrupted_one(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES, "ref-small", TINY)
    monkeypatch.setattr(training, "corpus_dir", lambda: corpus)
    tokenizer_file = (model_dir("ref-small") / "tokenizer.json").read_bytes()
    options = RunOptions("ref-small", Budget(minutes=60, tokens=256 * 12, decay_share=0.5), Rates(), rows=1, late_rows=1, row_len=256)
    finished = {}
    for label, stop_after in (("whole", None), ("resumed", 5)):
        folder = tmp_path / label
        folder.mkdir()
        (folder / "tokenizer.json").write_bytes(tokenizer_file)
        monkeypatch.setattr(training, "model_dir", lambda name, folder=folder: folder)
        monkeypatch.setattr(training, "checkpoint_path", lambda name, folder=folder: folder / "state.pt")
        if stop_after is not None:
            with monkeypatch.context() as interrupted:
                interrupted.setattr(training, "_one_batch", _interrupt_after(stop_after))
                with pytest.raises(KeyboardInterrupt):
                    train(replace(options, checkpoint_minutes=0.0))
        train(options)
        finished[label] = torch.load(folder / "state.pt", weights_only=True)["weights"]
    for name, weight in finished["whole"].items():
        torch.testing.assert_close(weight, finished["resumed"][name], rtol=1e-4, atol=1e-5)


def _interrupt_after(num_batches: int) -> object:
    """The real batch step, until it has run `num_batches` times."""
    real, done = training._one_batch, [0]

    def step(state: training._State, batch: list[Row], *rest: object) -> None:
        if done[0] == num_batches:
            raise KeyboardInterrupt
        done[0] += 1
        real(state, batch, *rest)  # type: ignore[arg-type]

    return step


def _noisy_weights() -> dict[str, torch.Tensor]:
    """Weights without the zeros that a fresh model has, so that every path matters."""
    generator = torch.Generator().manual_seed(1)
    return {name: weight + 0.1 * torch.randn(weight.shape, generator=generator) for name, weight in init_weights(TINY, 0).items()}


def test_loss_weights_favour_the_assistant(corpus: Path) -> None:
    rows = Packer(corpus, 256, 0, Curriculum()).batch(0, 8, progress=1.0)
    values = np.unique(np.concatenate([row.loss_weights for row in rows]))
    assert values.tolist() == pytest.approx([USER_PART_WEIGHT, 1.0])
    assert USER_PART_WEIGHT < 0.1  # what cannot be guessed is noise


def test_a_drill_teaches_what_follows_from_a_line_and_not_its_operands(corpus: Path) -> None:
    drills = open_document_set("drill", corpus)
    tokenizer = Tokenizer.from_file(str(model_dir("ref-small") / "tokenizer.json"))
    ids, parts = drills.document(0)
    learned = tokenizer.decode(ids[parts == 1].tolist()).split("\n")
    written = tokenizer.decode(ids.tolist()).removeprefix("<|bos|><|assistant|>").split("\n")
    assert [line.split(" = ", 1)[1] for line in written] == learned
