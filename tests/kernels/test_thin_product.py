"""Thin products against their definition, bit for bit from one number of rows to another, and the library that holds them.

Run: pytest tests/kernels/test_thin_product.py
"""

from __future__ import annotations

import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from outrider_kernels import native_library as native
from outrider_kernels.thin_product import RowNorm, ThinMatrix, ThinProduct, ThinTeam, reference_product

FloatArray = npt.NDArray[np.float32]
SHAPES = [(1, 1), (5, 3), (16, 16), (17, 40), (384, 100), (96, 1040)]  # inputs, outputs: panels and lanes that end early
MOST = 23


@pytest.fixture(scope="module", params=[1, 2, 3])
def team(request: pytest.FixtureRequest) -> ThinTeam:
    """Teams of several sizes, more threads than cores among them."""
    return ThinTeam(request.param)


def weights(inputs: int, outputs: int, half: bool, seed: int = 0) -> FloatArray:
    """Random weights, bfloat16 numbers if wanted."""
    weight = np.random.default_rng(seed).standard_normal((outputs, inputs)).astype(np.float32)
    return (weight.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) if half else weight


def some_rows(num_rows: int, inputs: int, seed: int = 1) -> FloatArray:
    """Random rows."""
    return np.random.default_rng(seed).standard_normal((num_rows, inputs)).astype(np.float32)


def product(
    team: ThinTeam, matrix: ThinMatrix, rows: FloatArray, bias: FloatArray | None = None, norm: RowNorm | None = None
) -> FloatArray:
    """A product through buffers of its own."""
    out = np.full((len(rows), matrix.num_outputs), np.nan, np.float32)
    ThinProduct(team, matrix, rows, out, bias=bias, norm=norm).run(len(rows))
    return out


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_products_are_the_definition(team: ThinTeam, inputs: int, outputs: int, half: bool) -> None:
    weight = weights(inputs, outputs, half)
    matrix = ThinMatrix.pack(weight)
    assert matrix.is_half == half
    bias, norm = some_rows(1, outputs, 2)[0], RowNorm(some_rows(1, inputs, 3)[0], 1e-5)
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 8, 12, 13, MOST):
        rows = some_rows(num_rows, inputs)
        tolerance = 2e-6 * np.sqrt(inputs) * np.abs(rows).max() * np.abs(weight).max() + 1e-6
        np.testing.assert_allclose(product(team, matrix, rows, bias), reference_product(rows, weight) + bias, rtol=1e-5, atol=tolerance)
        np.testing.assert_allclose(
            product(team, matrix, rows, None, norm), reference_product(rows, weight, norm), rtol=1e-4, atol=3 * tolerance
        )


def test_it_adds_to_what_is_there(team: ThinTeam) -> None:
    weight, rows = weights(33, 50, half=True), some_rows(9, 33)
    sums = some_rows(9, 50, 4)
    expected = sums + reference_product(rows, weight)
    ThinProduct(team, ThinMatrix.pack(weight), rows, sums, adds=True).run(9)
    np.testing.assert_allclose(sums, expected, atol=1e-4)


@pytest.mark.parametrize("half", [False, True])
def test_a_rows_bits_depend_on_nothing_but_the_row_and_the_matrix(half: bool) -> None:
    weight, rows, norm = weights(130, 77, half), some_rows(MOST, 130), RowNorm(some_rows(1, 130, 3)[0], 1e-5)
    matrix = ThinMatrix.pack(weight)
    alone = [product(ThinTeam(1), matrix, rows[at : at + 1], None, norm)[0] for at in range(MOST)]
    for num_threads in (1, 2, 3):
        team = ThinTeam(num_threads)
        for num_rows in range(1, MOST + 1):
            for begin in (0, MOST - num_rows):
                for place, bits in enumerate(product(team, matrix, rows[begin : begin + num_rows].copy(), None, norm)):
                    np.testing.assert_array_equal(bits, alone[begin + place])


def test_half_weights_give_the_bits_of_the_floats_they_are(team: ThinTeam) -> None:
    weight, rows = weights(70, 64, half=True), some_rows(11, 70)
    halves = ThinMatrix.pack(weight)
    odd = np.concatenate([weight, np.full((1, 70), np.pi, np.float32)])  # one row that is no bfloat16 number keeps all as floats
    floats = ThinMatrix.pack(odd)
    assert halves.is_half
    assert not floats.is_half
    np.testing.assert_array_equal(product(team, halves, rows), product(team, floats, rows)[:, :64])


def test_only_the_rows_asked_for_are_written(team: ThinTeam) -> None:
    rows, out = some_rows(8, 20), np.full((8, 30), 7.0, np.float32)
    ThinProduct(team, ThinMatrix.pack(weights(20, 30, half=True)), rows, out).run(3)
    assert (out[3:] == 7.0).all()
    assert (out[:3] != 7.0).all()


def test_what_does_not_fit_is_refused() -> None:
    team, matrix, rows = ThinTeam(1), ThinMatrix.pack(weights(20, 30, half=True)), some_rows(8, 20)
    with pytest.raises(ValueError, match="is not"):
        ThinProduct(team, matrix, rows, np.empty((8, 31), np.float32))
    with pytest.raises(ValueError, match="C order"):
        ThinProduct(team, matrix, np.asfortranarray(rows), np.empty((8, 30), np.float32))
    with pytest.raises(ValueError, match="each column"):
        ThinProduct(team, matrix, rows, np.empty((8, 30), np.float32), bias=np.empty(29, np.float32))


def test_a_team_serves_many_products_in_a_row_and_sleeps_between(team: ThinTeam) -> None:
    """Short products one after another are where a late thread could take part in the wrong one."""
    pairs = [(weights(inputs, outputs, True, inputs), some_rows(4, inputs)) for inputs, outputs in ((8, 640), (9, 16), (40, 33))]
    prepared = []
    for weight, rows in pairs:
        out = np.empty((4, len(weight)), np.float32)
        prepared.append((ThinProduct(team, ThinMatrix.pack(weight), rows, out), out, reference_product(rows, weight)))
    for turn in range(3000):
        one, out, expected = prepared[turn % len(prepared)]
        out[:] = np.nan
        one.run(4)
        np.testing.assert_allclose(out, expected, atol=1e-4)
        if turn % 1000 == 999:
            threading.Event().wait(0.05)  # long enough for the waiting threads to fall asleep


def test_a_library_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "seven.c"
    source.write_text("int seven(void) { return 7; }\n")
    assert native.native_library.__wrapped__(source).seven() == 7
    (built,) = (tmp_path / "outrider").iterdir()
    before = built.stat().st_mtime_ns
    assert native.native_library.__wrapped__(source).seven() == 7
    assert [path.stat().st_mtime_ns for path in (tmp_path / "outrider").iterdir()] == [before]
    source.write_text("int seven(void) { return 8; }\n")
    assert native.native_library.__wrapped__(source).seven() == 8, "another source is another library"


def test_without_a_compiler_or_with_one_that_fails_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = tmp_path / "broken.c"
    broken.write_text("this is not C\n")
    with pytest.raises(native.NativeUnavailable, match=r"could not compile broken\.c"):
        native.native_library.__wrapped__(broken)
    assert not list((tmp_path / "outrider").iterdir()), "nothing unfinished stays"
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(native.NativeUnavailable, match="no C compiler"):
        native.native_library.__wrapped__(broken)


def test_a_cache_folder_that_cannot_be_written_to_costs_a_build_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_the_way))
    source = tmp_path / "six.c"
    source.write_text("int six(void) { return 6; }\n")
    assert native.native_library.__wrapped__(source).six() == 6


def test_a_built_library_is_its_owners_alone(tmp_path: Path) -> None:
    """Another user who could write there could run code in ours."""
    code = "from outrider_kernels.thin_product import ThinTeam; ThinTeam(1)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert stat.S_IMODE((tmp_path / "outrider").stat().st_mode) == 0o700
