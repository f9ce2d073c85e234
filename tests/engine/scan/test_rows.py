"""Lines, Csv and JsonLines in runs: what is delivered when a file changes, vanishes or goes bad."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from ferryman.sources import Csv, JsonLines, Lines, Source
from tests.support.plan_world import PlanWorld

LINES = 2428


def kinds(folder: Path) -> dict[str, tuple[Source, str, str]]:
    """Source, header and the format of a row."""
    return {
        "lines": (Lines(folder, max_deleted=1), "", "line {0}"),
        "csv": (Csv(folder, id="key", max_deleted=1), "key,text\n", 'k{0},"text {0}"'),
        "jsonlines": (JsonLines(folder, id="/key", max_deleted=1), "", '{{"key": "k{0}", "text": "text {0}"}}'),
    }


@pytest.mark.rule("rows.one")
@pytest.mark.parametrize("kind", ["lines", "csv", "jsonlines"])
def test_one_changed_line_re_sends_one(place: Path, kind: str) -> None:
    """A file with 2 428 lines is 2 428 documents; a removed file is as many deletes."""
    folder = place / "corpus"
    folder.mkdir()
    source, header, row = kinds(folder)[kind]
    rows = [row.format(i) for i in range(LINES)]
    file = folder / "f"
    file.write_text(header + "\n".join(rows) + "\n")
    trial = PlanWorld(place).build(source=source)
    assert trial.run().delivered == LINES
    assert set(trial.out().counted().values()) == {1}
    trial.out().forget()

    rows[1000] = row.format("1000").replace("line", "verse").replace("text 1000", "another text")
    file.write_text(header + "\n".join(rows) + "\n")
    assert trial.run().delivered == 1
    [line] = trial.out().lines()
    assert line["id"] == {"lines": "f#line=1001"}.get(kind, "k1000")
    trial.out().forget()
    assert trial.run().delivered == 0

    file.unlink()
    assert trial.run().deleted == LINES
    assert all(id.startswith("-") for id in trial.out().counted()), "not all of them are deletes"
    assert trial.counts() == {"deleted": LINES}


@pytest.mark.rule("rows.incomplete")
def test_a_file_that_cannot_be_read_to_its_end_deletes_nothing(place: Path) -> None:
    """What could be read is delivered; the run says which file, and ends with 4."""
    folder = place / "corpus"
    folder.mkdir()
    text = "".join(f"a line of some length, with the number {i}\n" for i in range(20_000)).encode()
    (folder / "a.gz").write_bytes(gzip.compress(text))
    (folder / "b").write_text("one\ntwo\n")
    trial = PlanWorld(place).build(source=Lines(folder))
    assert trial.run().exit == 0
    trial.out().forget()

    (folder / "a.gz").write_bytes(gzip.compress(text)[:-1000])
    (folder / "b").write_text("one\nzwei\nthree\n")
    summary = trial.run()

    assert summary.exit == 4
    assert trial.out().counted() == {"b#line=2": 1, "b#line=3": 1}
    [told] = [m for m in summary.messages if "incomplete listing" in m]
    assert "a.gz: gzip data that cannot be unpacked" in told
    assert trial.counts() == {"delivered": 20_003}


@pytest.mark.rule("rows.bad")
def test_a_bad_row_harms_only_itself(place: Path) -> None:
    """It ends as ERROR_DOC by its line, what it was before stays; mended, it is delivered."""
    folder = place / "corpus"
    folder.mkdir()
    (folder / "f.csv").write_text("a,b\n1,1\n2,2\n3,3\n")
    trial = PlanWorld(place).build(source=Csv(folder))
    trial.run()
    trial.out().forget()

    (folder / "f.csv").write_text("a,b\n1,one\n2\n3,three\n")
    assert trial.run().exit == 3
    assert trial.out().counted() == {"f.csv#row=2": 1, "f.csv#row=4": 1}
    [bad] = trial.deliveries(status="ERROR_DOC")
    assert bad["document"] == "f.csv#row=3"
    assert bad["message"] == f"{folder}/f.csv, line 3: 1 cells, but there are 2 columns. Correct the row."
    assert trial.run().delivered == 0
    trial.out().forget()

    (folder / "f.csv").write_text("a,b\n1,one\n2,two\n3,three\n")
    assert trial.run().exit == 0
    assert trial.out().counted() == {"f.csv#row=3": 1}


def test_a_row_whose_id_is_lost_is_not_taken_for_gone(place: Path) -> None:
    """Its document stays until the row is mended, or taken away."""
    folder = place / "corpus"
    folder.mkdir()
    (folder / "f").write_text('{"id": "x"}\n{"id": "y"}\n{"id": "z"}\n')
    trial = PlanWorld(place).build(source=JsonLines(folder, id="id"))
    trial.run()

    (folder / "f").write_text('{"id": "x"}\n{"id: "y"}\n')
    assert trial.run().exit == 4
    assert trial.counts() == {"delivered": 3, "rejected": 1}

    (folder / "f").write_text('{"id": "x"}\n{"id": "y", "mended": true}\n')
    assert trial.run().exit == 0
    assert trial.counts() == {"delivered": 2, "deleted": 1}


def test_a_row_that_moves_to_another_file_stays_the_same(place: Path) -> None:
    """With ids of their own, a new export in a new file sends only what changed."""
    folder = place / "corpus"
    folder.mkdir()
    (folder / "monday.csv").write_text("id,b\nx,1\ny,2\n")
    trial = PlanWorld(place).build(source=Csv(folder, id="id"))
    trial.run()
    trial.out().forget()
    (folder / "monday.csv").unlink()
    (folder / "tuesday.csv").write_text("b,id\n1,x\n3,y\n")

    assert trial.run().delivered == 1
    assert trial.out().counted() == {"y": 1}


def test_retries_ask_for_their_rows_only(place: Path) -> None:
    """A step that failed for one line is tried again with this line."""
    folder = place / "corpus"
    folder.mkdir()
    (folder / "f").write_text("one\nbad\nthree\n")
    failed = place / "failed"

    def step(doc: Any) -> Any:
        if doc.raw == b"bad" and not failed.exists():
            failed.touch()
            raise RuntimeError("not now")
        return doc

    trial = PlanWorld(place).build(step, source=Lines(folder))

    assert trial.run().exit == 0
    assert trial.out().counted() == {"f#line=1": 1, "f#line=2": 1, "f#line=3": 1}
