"""What an installation must give: the console script, and every package importable from any folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGES = ("outrider", "outrider_kernels", "outrider_models", "outrider_bench", "drafter_service", "verifier_service")


def test_the_console_script_names_its_commands(tmp_path: Path) -> None:
    script = Path(sys.executable).parent / "outrider"
    done = subprocess.run([script, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    for command in ("up", "run", "generate", "bench", "doctor"):
        assert f"\n    {command} " in done.stdout


def test_every_package_is_importable_from_anywhere(tmp_path: Path) -> None:
    code = f"import sys, {', '.join(PACKAGES)}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr or "importing the bare packages imported torch"
