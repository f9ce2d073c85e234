"""docs/how-to/index-into-opensearch.md is true: its commands are run against a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_how_to import HOW_TO, commands_of, is_shown
from tests.destinations.search_index import SearchIndex

PAGE = (HOW_TO / "index-into-opensearch.md").read_text("utf-8")

CURL = """#!{python}
import sys, urllib.request
url = next(a for a in sys.argv[1:] if a.startswith("localhost"))
method = sys.argv[sys.argv.index("-X") + 1] if "-X" in sys.argv else "GET"
answer = urllib.request.urlopen(urllib.request.Request("http://" + url, method=method)).read()
out = open(sys.argv[sys.argv.index("-o") + 1], "wb") if "-o" in sys.argv else sys.stdout.buffer
out.write(answer)
"""
"""As much of curl as the page needs: the machine may have none."""


@pytest.mark.spark
def test_index_into_opensearch(server: Callable[[str], Any], tmp_path: Path) -> None:
    """Each command of the page is run in a shell; each line that the page shows is a line of its output."""
    real = server("opensearch")
    SearchIndex(real.url, "plays").ask("DELETE", status=(200, 404))
    for name, text in {
        "ferryman": f'#!/bin/sh\nexec "{sys.executable}" -m ferryman.cli "$@"\n',
        "curl": CURL.format(python=sys.executable),
    }.items():
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(text)
        command.chmod(0o755)

    def here(text: str) -> str:
        return text.replace("localhost:9200", f"localhost:{real.port}")

    parts = re.findall(r"`plan\.py`:\n\n```python\n(.*?)^```|^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(parts) == PAGE.count("```console\n") + 1
    for file, commands in parts:
        if file:
            (tmp_path / "plan.py").write_text(here(file))
        for line, shown in commands_of(commands):
            done = subprocess.run(
                ["/bin/sh", "-c", here(line)],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
                check=False,
            )
            assert done.returncode == 0, f"{line}: {done.stderr}"
            for wanted in shown:
                assert is_shown(here(wanted), done.stdout.splitlines()), f"{line}: no {wanted!r} in:\n{done.stdout}"
