"""docs/how-to/index-into-opensearch.md is true: its commands are run against a real server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.destinations.search_index import SearchIndex
from tests.support.page import HOW_TO, QuickShell, Shell

CURL = """\
import sys, urllib.request
url = next(a for a in sys.argv[1:] if a.startswith("localhost"))
method = sys.argv[sys.argv.index("-X") + 1] if "-X" in sys.argv else "GET"
answer = urllib.request.urlopen(urllib.request.Request("http://" + url, method=method)).read()
out = open(sys.argv[sys.argv.index("-o") + 1], "wb") if "-o" in sys.argv else sys.stdout.buffer
out.write(answer)
"""
"""As much of curl as the page needs: the machine may have none."""


@pytest.mark.parametrize(
    "kind", [QuickShell, pytest.param(Shell, marks=[pytest.mark.spark, pytest.mark.slow], id="spark")]
)
def test_index_into_opensearch(server: Callable[[str], Any], tmp_path: Path, kind: type[Shell]) -> None:
    """Each command of the page is run in a shell; each line that the page shows is a line of its output."""
    real = server("opensearch")
    SearchIndex(real.url, "plays").ask("DELETE", status=(200, 404))
    with kind(tmp_path, {"localhost:9200": f"localhost:{real.port}"}) as shell:
        (tmp_path / "bin" / "curl.py").write_text(CURL)
        shell.add("curl", f'"{tmp_path}/bin/curl.py"')
        shell.follow(HOW_TO / "index-into-opensearch.md")


def test_vectors_in_opensearch(server: Callable[[str], Any], tmp_path: Path) -> None:
    """The page's commands, with the server that has the plugin."""
    real = server("opensearch-knn")
    SearchIndex(real.url, "notes").ask("DELETE", status=(200, 404))
    SearchIndex(real.url, "notes2").ask("DELETE", status=(200, 404))
    with QuickShell(tmp_path, {"localhost:9200": f"localhost:{real.port}"}) as shell:
        shell.follow(HOW_TO / "vectors-in-opensearch.md")
