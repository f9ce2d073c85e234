"""The ``JsonLines`` destination: its files, and what a kill leaves of them."""

from __future__ import annotations

import errno
import json
import os
import pickle
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ferryman import Plan
from ferryman.destinations import Delivery, Directory, JsonLines, Outcome
from ferryman.destinations.base import DestinationContext, Guarantee
from ferryman.errors import PermanentError, PlanError, TransientError
from ferryman.plan import DestinationNode
from ferryman.sources import Memory
from ferryman.storage import disk
from ferryman.testing.destinations import delete, delivery


def written(folder: Path) -> dict[str, list[dict[str, Any]]]:
    paths = sorted(folder.glob("*.jsonl"))
    return {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in paths}


def test_a_chunk_is_a_file_of_lines(tmp_path: Path) -> None:
    """Named from its first and last sequence; a line has every part of its delivery."""
    out = JsonLines(tmp_path / "out")
    out.check()
    one = Delivery(
        "a#1",
        hash="f" * 32,
        sequence=7,
        fields=b'{"title":"One"}',
        raw="é\n".encode(),
        version="v",
        source="files",
        parent_id="a",
        origin_id="a",
        route=("left",),
    )
    gone = delete("b", 12)
    assert out.write([one, gone]) == [Outcome.ok()] * 2
    [(name, lines)] = written(tmp_path / "out").items()
    assert name.startswith("0000000000000007-0000000000000012-")
    assert name.endswith(".jsonl")
    assert len(lines[0].pop("content_hash")) == 32
    assert lines[0] == {
        "hash": "f" * 32,
        "sequence": 7,
        "operation": "upsert",
        "id": "a#1",
        "parent_id": "a",
        "origin_id": "a",
        "source": "files",
        "version": "v",
        "route": ["left"],
        "fields": {"title": "One"},
        "text": "é\n",
    }
    assert (lines[1]["operation"], lines[1]["fields"], lines[1]["text"]) == ("delete", {}, None)


def test_a_folder_among_the_files_is_not_read(tmp_path: Path) -> None:
    """Such as one into which somebody has moved older files."""
    out = JsonLines(tmp_path / "out")
    out.check()
    out.write([delivery("a", 1)])
    (tmp_path / "out" / "older.jsonl").mkdir()
    context = DestinationContext("tests", 1, "out", 1, Guarantee.AT_LEAST_ONCE)
    assert [each.id for each in out.inventory(context)] == ["a"]
    assert out.highest_sequence() == 1


def test_a_damaged_line_is_missing_from_the_inventory(tmp_path: Path) -> None:
    """Also if it is JSON but for a byte that is not UTF-8: the other lines are read."""
    out = JsonLines(tmp_path / "out")
    out.check()
    context = DestinationContext("plan", 1, "out", 1, Guarantee.AT_LEAST_ONCE)
    out.write([delivery("café", 7), delivery("tea", 8), delivery("milk", 9)])
    [path] = (tmp_path / "out").glob("*.jsonl")
    path.write_bytes(path.read_bytes().replace("café".encode(), b"caf\xe9").replace(b'"tea"', b'"te'))
    assert [stored.id for stored in out.inventory(context)] == ["milk"]
    assert [stored.id for stored in out.newer_than(0)] == ["milk"]


def test_bytes_that_are_no_text_are_kept_as_base64(tmp_path: Path) -> None:
    """Nothing of a document is lost or replaced."""
    out = JsonLines(tmp_path / "out")
    out.check()
    chunk = [delivery("bytes", 1), delivery("empty", 2, ""), delivery("none", 3, None)]
    chunk[0].raw = b"\x80\x81"
    out.write(chunk)
    [lines] = written(tmp_path / "out").values()
    assert [(line["text"], line.get("raw_base64")) for line in lines] == [(None, "gIE="), ("", None), (None, None)]


def test_the_same_chunk_makes_the_same_file(tmp_path: Path) -> None:
    """Repeating a chunk changes nothing; another chunk of the same first and last row does not replace it."""
    out = JsonLines(tmp_path)
    rows = [delivery(f"doc-{i}", i) for i in range(1, 6)]
    out.write(rows)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    out.write(rows)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    out.write([rows[0], rows[4]])
    assert len(os.listdir(tmp_path)) == 2
    assert before.items() <= {path.name: path.read_bytes() for path in tmp_path.iterdir()}.items()


def test_a_bad_document_is_left_out(tmp_path: Path) -> None:
    """Its outcome says why; a chunk of nothing else makes no file."""
    out = JsonLines(tmp_path)
    bad = delivery("bad", 1, fields={"title": "\ud800"})
    assert [o.kind for o in out.write([bad])] == ["permanent"]
    assert os.listdir(tmp_path) == []
    outcomes = out.write([bad, delivery("good", 2)])
    assert [o.kind for o in outcomes] == ["permanent", "ok"]
    assert "bad: field 'title'" in outcomes[0].why
    assert [line["id"] for lines in written(tmp_path).values() for line in lines] == ["good"]


def test_what_a_killed_writer_leaves_is_cleaned_up(tmp_path: Path) -> None:
    """Temporary files begin with a dot; old ones go at the next check, young ones may be somebody's at work."""
    out = JsonLines(tmp_path)
    old, young = tmp_path / f"{disk.TEMPORARY}old", tmp_path / f"{disk.TEMPORARY}young"
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    out.check()
    assert set(os.listdir(tmp_path)) == {young.name, ".ferryman-id"}


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that stops half way leaves no file that a reader would take for a chunk."""

    def half(fd: int, data: bytes) -> NoReturn:
        real_write(fd, bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    real_write = os.write
    monkeypatch.setattr(os, "write", half)
    with pytest.raises(TransientError, match="No space left on device") as caught:
        JsonLines(tmp_path).write([delivery("a", 1)])
    assert caught.value.universal
    assert os.listdir(tmp_path) == []


def test_a_place_that_cannot_be_written_is_for_a_person(tmp_path: Path) -> None:
    """A file where the folder should be is permanent and universal, and is not touched."""
    (tmp_path / "out").write_text("mine")
    for call in (JsonLines(tmp_path / "out").check, lambda: JsonLines(tmp_path / "out").write([delivery("a", 1)])):
        with pytest.raises(PermanentError, match=f"{tmp_path}/out: ") as caught:
            call()
        assert caught.value.universal
    assert (tmp_path / "out").read_text() == "mine"


def test_a_folder_that_vanishes_is_made_again(tmp_path: Path) -> None:
    """It is transient: the next wave's check makes it."""
    out = JsonLines(tmp_path / "out" / "deep")
    with pytest.raises(TransientError) as caught:
        out.write([delivery("a", 1)])
    assert caught.value.universal
    out.check()
    assert out.write([delivery("a", 1)]) == [Outcome.ok()]


def test_a_relative_folder_is_meant_from_where_the_plan_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driver and workers mean the same folder."""
    monkeypatch.chdir(tmp_path)
    out = JsonLines("out")
    monkeypatch.chdir("/")
    worker = pickle.loads(pickle.dumps(out))
    assert worker.directory == tmp_path / "out"
    assert worker.target() == f"file://{tmp_path}/out"


def test_lines_of_a_file(tmp_path: Path) -> None:
    """``rows`` is the batch of a plan that does not say one; less than one is refused."""
    plan = Plan("plan")
    source = plan.source("files", Memory([]))
    source.tee("more", JsonLines(tmp_path, rows=10_000)).tee("own", JsonLines(tmp_path, rows=9), batch=7).destination(
        "usual", JsonLines(tmp_path)
    )
    assert [n.policy.batch for n in plan.nodes if isinstance(n, DestinationNode)] == [10_000, 7, 500]
    with pytest.raises(PlanError, match="rows=0"):
        JsonLines(tmp_path, rows=0)


@pytest.mark.parametrize("build", [JsonLines, Directory])
@pytest.mark.parametrize("place", ["s4://bucket/out", "http://me:hush@host/out", Path("gs://bucket/out"), "hdfs:/out"])
def test_urls_are_not_folders(build: Any, place: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused, with what to do, where a folder of this name would be made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PlanError, match="Give a folder of this machine") as caught:
        build(place)
    assert "hush" not in str(caught.value)


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    assert JsonLines(f"file://{tmp_path}/out").directory == tmp_path / "out"
    assert Directory(f"{tmp_path}/a:b/c").directory == tmp_path / "a:b/c"
