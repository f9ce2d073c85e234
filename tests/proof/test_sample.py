"""Samples of sources: what is new, changed and deleted in their second version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, Plan
from ferryman.destinations import Null
from ferryman.errors import BadDocument, UsageError
from ferryman.proof.faults import Effects
from ferryman.proof.sample import SampleLog, SampleSource, draw_sample
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Files, Memory, Queue
from ferryman.sources.base import Listed, Source


def plan_of(source: Source) -> Plan:
    plan = Plan("sampled")
    plan.source("docs", source).destination("out", Null())
    return plan


def documents(count: int) -> list[Document]:
    return [Document(f"d{n:03}", raw=b"text %d" % n, n=n) for n in range(count)]


@pytest.mark.parametrize("count", [4, 16, 200])
def test_the_second_version_has_new_changed_and_deleted_documents(count: int) -> None:
    drawn = draw_sample(plan_of(Memory(documents(count))), 1000, 0)["docs"]

    first, second = ({each.id: each.raw for each in drawn.version(n)} for n in (0, 1))

    assert second.keys() - first.keys()
    assert first.keys() - second.keys()
    assert [id for id in first.keys() & second.keys() if first[id] != second[id]]


def test_a_changed_document_has_the_content_of_another_of_its_kind(tmp_path: Path) -> None:
    """Its steps could process that one, so they can process this."""
    for n in range(20):
        (tmp_path / f"{n:02}.{'txt' if n % 2 else 'bin'}").write_bytes(b"txt" * n if n % 2 else b"\x80" * (n + 1))

    drawn = draw_sample(plan_of(Files(tmp_path)), 1000, 0)["docs"]

    changed = {each.id: each for each in drawn.version(1)}
    assert all(each.raw is not None and (b"\x80" in each.raw) == id.endswith("bin") for id, each in changed.items())
    assert all(each.fields["name"] == id for id, each in changed.items())


def test_the_same_seed_draws_the_same_documents() -> None:
    plan = plan_of(Memory(documents(500)))

    first, again, other = (draw_sample(plan, 20, seed)["docs"].documents for seed in (1, 1, 2))

    assert first == again != other
    assert len(first) == 20


def test_a_source_without_documents_is_refused() -> None:
    with pytest.raises(UsageError, match="docs has no documents"):
        draw_sample(plan_of(Memory([])), 10, 0)


class Fetched(Source):
    """Lists three documents, one of which cannot be read, and one of which is too large."""

    def partitions(self) -> list[str]:
        return ["all"]

    def listing(self, partition: Any) -> Iterator[Listed]:
        yield Listed("good", 4)
        yield Listed("bad", 4)
        yield Listed("large", 10**12)
        yield Listed("refused", 0, refused="a dangling link")

    def read(self, listed: Listed) -> Document:
        if listed.id == "bad":
            raise BadDocument("it is torn")
        assert listed.id == "good", "a large document is not read"
        return Document("good", raw=b"good")


def test_what_cannot_be_read_stays_refused() -> None:
    drawn = draw_sample(plan_of(Fetched()), 10, 0)["docs"]

    refused = {each.id: each.refused for each in drawn.documents}
    assert refused == {"good": "", "bad": "it is torn", "refused": "a dangling link"}


def test_a_sampled_source_keeps_ids_and_prefix_of_its_own() -> None:
    own = Memory(documents(5), prefix="mine/")
    drawn = draw_sample(plan_of(own), 10, 0)["docs"]

    source = SampleSource(drawn.version(0), drawn.reads, own, Effects.none())

    listed = [each for part in source.partitions() for each in source.listing(part)]
    assert source.full_id(listed[0].id) == "mine/d000"


def test_a_queue_is_sampled_by_its_messages(tmp_path: Path) -> None:
    DurableQueue("in", tmp_path).append([{"n": n} for n in range(50)])

    drawn = draw_sample(plan_of(Queue("in", tmp_path)), 20, 0)["docs"]

    assert len(drawn.entries) == 20


def test_what_a_step_changes_inside_a_field_stays_out_of_the_sample(tmp_path: Path) -> None:
    """A document that is read again after an error would come with the changes of the first attempt, which the proof
    would report as another content."""
    DurableQueue("in", tmp_path).append([{"tags": ["a"]}])
    of_queue, of_list = Queue("in", tmp_path), Memory([Document("d", tags=["a"])])
    [entries] = draw_sample(plan_of(of_queue), 1, 0).values()
    [drawn] = draw_sample(plan_of(of_list), 1, 0).values()
    log = SampleLog(entries, 1, of_queue)
    source = SampleSource(drawn.documents, True, of_list, Effects.none())
    [piece] = log.pieces(log.begin(), log.end(), 1)

    read: list[list[str]] = []
    for _ in range(2):
        [entry] = log.read_piece(piece)
        for document in (entry.document, log.read(Listed(entry.document.id, 0)), source.read(Listed("d", 0))):
            read.append([*document["tags"]])
            document["tags"].append("seen")

    assert read == [["a"]] * 6
