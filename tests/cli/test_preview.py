"""``ferryman preview`` as people type it, on Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.snapshot import snapshot

Ferryman = Callable[..., Any]


@pytest.mark.slow  # engine/test_on_spark.py previews on Spark each time
@pytest.mark.spark
def test_what_is_previewed_is_what_is_run(ferryman: Ferryman, tmp_path: Path) -> None:
    """Before the first run: no state is made, the index is not opened, and nothing is left in TMPDIR."""
    assert ferryman("init", "plays").code == 0
    (tmp_path / "plays" / "documents" / "latin1.txt").write_bytes(b"caf\xe9")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    before = snapshot(tmp_path / "plays")

    data = ferryman("preview", "plays/plan.py", "--json", "--master", "local[2]", TMPDIR=str(scratch))

    assert snapshot(tmp_path / "plays") == before
    assert not [path for path in scratch.iterdir() if path.name.startswith("ferryman")]
    assert data.code == 0, data.err
    index = json.loads(data.out)["destinations"]["index"]
    assert {row["document"] for row in index["gets"]} == {"kill-it.md", "change-it.md", "notes/delete-it.txt"}
    assert [row["document"] for row in index["refused"]] == ["latin1.txt"]

    assert ferryman("run", "plays/plan.py", "--master", "local[2]").code == 3

    events = json.loads(ferryman("deliveries", "plays/plan.py", "--json").out)
    assert {(e["document"], e["delivery_hash"]) for e in events if e["status"] == "INDEXED"} == {
        (row["document"], row["delivery_hash"]) for row in index["gets"]
    }


def test_a_foreign_folder_is_refused_before_spark_starts(ferryman: Ferryman, plan_file: Path) -> None:
    """By name, with 1; it stays as it is."""
    folder = plan_file.parent / ".ferryman" / "small-v2"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").touch()
    before = snapshot(plan_file.parent)

    done = ferryman("preview", plan_file, "--master", "nonsense")

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"error: {folder} holds thesis.tex and no state.json")
    assert snapshot(plan_file.parent) == before
