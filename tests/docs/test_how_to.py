"""The README and the how-to guides are true: their commands are run, and what they show is what comes."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from ferryman.engine.driver import explain_errors
from ferryman.errors import EngineError
from tests.support.page import HOW_TO, QuickShell, parts

PAGES = [
    "../../README",
    "index-a-folder",
    "recover",
    "preview-a-plan",
    "route-and-duplicate",
    "make-children",
    "what-happens-when-it-fails",
    "change-a-plan",
    "index-lines-and-csv",
    "index-pdf-and-office-files",
    "split-text-for-rag",
    "build-a-rag-index",
    "let-an-assistant-search",
    "measure-retrieval",
    "use-a-dlt-source",
    "change-the-model",
    "use-langchain-and-llamaindex",
    "use-a-queue",
    "chain-plans",
    "count-by-key",
    "keep-an-inverted-index",
    "replicate-a-state",
    "join-two-streams",
    "keep-an-error-queue",
    "call-a-step-once",
    "run-a-model-over-batches",
    "embed-each-text-once",
    "verify-an-index",
    "prove-a-plan",
    "run-on-a-schedule",
    "watch-a-folder",
    "metrics-and-alerts",
    "lineage",
    "run-in-a-container",
    "back-up-and-move",
]
"""Of which all commands are run, in one shell a page."""


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_true(place: Path, name: str) -> None:
    """Each command of the page is run in a shell; each line that the page shows is a line of its output."""
    with QuickShell(place) as shell:
        shell.follow(HOW_TO / f"{name}.md")


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_left_out(name: str) -> None:
    """Every command and every file of the page is found, so that it can be run."""
    text = (HOW_TO / f"{name}.md").read_text("utf-8")
    found = list(parts(HOW_TO / f"{name}.md"))

    assert text.count("```console\n") == sum(not file for file, _ in found)
    assert text.count("```python\n") == sum(bool(file) for file, _ in found)


def test_what_a_full_disk_says() -> None:
    """The page shows the very words."""
    state = SimpleNamespace(root="…/notes-v1", outbox=SimpleNamespace(files={"a file": SimpleNamespace(size=1234)}))
    with pytest.raises(EngineError) as caught, explain_errors(state):  # type: ignore[arg-type]
        raise OSError(errno.ENOSPC, "No space left on device")

    assert f"error: {caught.value}\n" in (HOW_TO / "recover.md").read_text("utf-8")
