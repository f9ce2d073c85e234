"""docs/reference/cli.md and intake-cli.md are what the command says about itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_reference_is_made_from_the_help() -> None:
    """If this fails: .venv/bin/python scripts/cli_reference.py"""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "cli_reference.py", "--print"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    reference = ROOT / "docs" / "reference"
    pages = [(reference / name).read_text("utf-8") for name in ("cli.md", "intake-cli.md")]
    assert "".join(f"{page}\n" for page in pages) == done.stdout
    assert "ferryman run" in pages[0]
    assert "ferryman intake serve" in pages[1]
    assert "## `ferryman intake" not in pages[0]
