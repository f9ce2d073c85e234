"""docs/reference/cli.md is what the command says about itself."""

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
    assert (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8") == done.stdout.removesuffix("\n")
