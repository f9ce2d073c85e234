"""The how-to guide about LanceDB and Qdrant is true: its commands are run, against Qdrant's engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers.server import Server
from tests.support.page import HOW_TO, QuickShell


@pytest.mark.server
@pytest.mark.slow  # each command loads both clients: some 3 s
def test_vectors_in_lancedb_or_qdrant(
    server: Callable[[str], Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's commands, in its order."""
    pytest.importorskip("lancedb")
    monkeypatch.setenv("QUICK_FERRYMAN_FORKS", "no")
    with QuickShell(tmp_path, {"http://localhost:6333": server("qdrant").url}) as shell:
        shell.follow(HOW_TO / "vectors-in-lancedb-or-qdrant.md")
