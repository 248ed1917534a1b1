"""The published vectors of docs/noise.md: changing one bit of the noise changes every answer ever given, so these never change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outrider.noise.field import bits, gumbel_of, uniform_of
from outrider.noise.keys import Purpose, derive_key, key_of
from outrider.types.sampling import NoiseAddress

KEY_VECTORS = [
    (0, 0, 0, Purpose.PICK, 0x9159A3AC615B4CCF),
    (0, 0, 0, Purpose.DRAFT, 0x3D8317FE1E804B5D),
    (0, 0, 0, Purpose.ACCEPT, 0xEDC01BD5F9017601),
    (0, 0, 0, Purpose.RESIDUAL, 0xABB19E184F89C8E4),
    (0, 1, 0, Purpose.PICK, 0xF115BA093653643D),
    (0, 0, 1, Purpose.PICK, 0x9D22197C4C77E208),
    ((1 << 64) - 1, 7, 3, Purpose.PICK, 0x6E8C57862AB7292C),
]
FIELD_VECTORS = [
    (0x0000000000000000, 0, 0, 0x5CFCC391B726F0D3, "0x1.73f30e46dc9bep-2", 0xBC4EFDC0),
    (0x9159A3AC615B4CCF, 0, 0, 0x5A88D5F531D6A70E, "0x1.6a2357d4c75aap-2", 0xBD1E7779),
    (0x9159A3AC615B4CCF, 0, 1, 0x9BAD2B55A69989AC, "0x1.375a56ab4d331p-1", 0x3F32C813),
    (0x9159A3AC615B4CCF, 1, 0, 0x74EBCCD12B70011F, "0x1.d3af3344adc02p-2", 0x3E799B67),
    (0x9159A3AC615B4CCF, 4095, 151935, 0xAB329E9A88983916, "0x1.56653d3511307p-1", 0x3F6910CB),
    (0x6E8C57862AB7292C, 17, 3, 0x56AB219C70460DD6, "0x1.5aac8671c1182p-2", 0xBDA37648),
    (0x6E8C57862AB7292C, 1 << 31, (1 << 31) - 1, 0x2EA63002F4C4963B, "0x1.75318017a624cp-3", 0xBF08386B),
]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "noise.md"


@pytest.mark.parametrize(("seed", "sample_index", "branch", "purpose", "expected"), KEY_VECTORS)
def test_key_vector(seed: int, sample_index: int, branch: int, purpose: Purpose, expected: int) -> None:
    assert derive_key(seed, sample_index, branch, purpose) == expected
    assert key_of(NoiseAddress(seed, sample_index, branch), purpose) == expected


@pytest.mark.parametrize(("key", "position", "token", "expected", "uniform_hex", "gumbel_pattern"), FIELD_VECTORS)
def test_field_vector(key: int, position: int, token: int, expected: int, uniform_hex: str, gumbel_pattern: int) -> None:
    found = bits(key, position, token)
    assert int(found[0]) == expected
    assert float(uniform_of(found)[0]) == float.fromhex(uniform_hex)
    assert int(gumbel_of(found).view(np.uint32)[0]) == gumbel_pattern


def test_page_publishes_the_vectors() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for *_, key in KEY_VECTORS:
        assert f"`{key:016x}`" in page
    for key, position, token, noise_bits, uniform_hex, pattern in FIELD_VECTORS:
        assert f"| `{key:016x}` | {position} | {token} | `{noise_bits:016x}` | {uniform_hex} | `{pattern:08x}` |" in page
