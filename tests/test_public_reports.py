"""Public reports about programs that index, retry, queue and schedule, rebuilt here: each with its address, and what
happens in its place. Those about text stand in tests/steps."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import Plan, account
from ferryman.cli.app import start
from ferryman.destinations import Delivery, DestinationContext, Guarantee, JsonLines, OpenSearch, Outcome, Sql
from ferryman.document import Document
from ferryman.errors import PlanError
from ferryman.plan.load import load_plan
from ferryman.plan.structure import changes, structure
from ferryman.routers import Duplicate
from ferryman.sources import Files, Memory
from ferryman.testing.destinations import delivery
from ferryman.testing.inprocess import InProcess
from tests.destinations.search_index import SearchIndex, index, opensearch
from tests.support.families import end
from tests.support.once import Once
from tests.support.plan_world import Interrupted, PlanWorld, Until, Watch, place, run_plan
from tests.support.receiver import Receiver, Reply, Request
from tests.support.recorder import Recorder
from tests.support.scanning import write
from tests.support.sleeper import Sleeper

__all__ = ["index", "opensearch", "place"]


def plan_to(out: Any, documents: list[dict[str, Any]], **options: Any) -> Plan:
    plan = Plan("reports", version=1)
    plan.source("docs", Memory(documents)).destination("out", out, backoff=0, **options)
    return plan


# -- bulk indexing: one item, one index, one answer --------------------------------------------------------------------


def test_a_term_that_is_too_long_fails_alone(index: SearchIndex, place: Path) -> None:
    """https://github.com/logstash-plugins/logstash-output-elasticsearch/issues/795: a value that exceeds the longest
    term was sent again for ever, and everything behind it waited."""
    index.ask("PUT", body={"mappings": {"properties": {"tag": {"type": "keyword"}}}})
    documents = [{"id": f"d{n}", "tag": "x" * 40_000 if n == 7 else "short"} for n in range(50)]

    summary = run_plan(plan_to(OpenSearch(index.url, index.name), documents), place / "state")

    assert (summary.exit, summary.delivered, summary.failed, summary.pending) == (3, 49, 1, 0)
    assert set(index.documents()) == {d["id"] for d in documents} - {"d7"}
    [row] = account.deliveries(place / "state" / "reports-v1", status="failed")
    assert "d7" in row["document"]
    assert "immense term" in row["message"]


def test_an_index_that_is_read_only_keeps_its_documents_pending_and_no_others(
    index: SearchIndex, opensearch: Any, place: Path
) -> None:
    """https://github.com/elastic/logstash/issues/10023: an index had been set to read only. Items for it were answered
    with 403 and tried again for ever, and slowed down all other outputs."""
    other = SearchIndex(opensearch.url, f"{index.name}-other")
    index.ask("PUT", body={"settings": {"index.blocks.write": True}})
    documents = [{"id": f"d{n}", "n": n} for n in range(20)]
    plan = Plan("reports", version=1)
    fork = plan.source("docs", Memory(documents)).route("all", Duplicate())
    for name, target in (("blocked", index), ("free", other)):
        fork.destination(name, OpenSearch(target.url, target.name), backoff=0)

    summary = run_plan(plan, place / "state")

    assert (summary.exit, summary.delivered, summary.pending, summary.failed) == (4, 20, 20, 0)
    assert len(other.documents()) == 20
    assert any("blocked" in message and "index write" in message for message in summary.messages), summary.messages
    index.ask("PUT", "/_settings", {"index.blocks.write": None})
    assert run_plan(plan, place / "state").exit == 0
    assert len(index.documents()) == 20


@pytest.mark.parametrize(("status", "kind"), [(400, "permanent"), (500, "transient")])
def test_an_item_with_a_bad_status_and_no_error_was_not_delivered(status: int, kind: str) -> None:
    """https://github.com/opensearch-project/data-prepper/pull/4335: a service left out ``error`` in the items that it
    had not taken, and said that there were no errors: they counted as written."""

    def answer(request: Request) -> Reply:
        items = [{"index": {"status": each}} for each in (201, status, 201)]
        return Reply(body=json.dumps({"errors": False, "items": items}).encode())

    with Receiver(answer) as receiver:
        out = OpenSearch(receiver.url.removesuffix("/hook"), "books")
        out.open(DestinationContext("tests", 1, "node", 1, Guarantee.AT_LEAST_ONCE))
        outcomes = out.write([delivery("a", 1), delivery("bad", 2), delivery("c", 3)])

    assert [outcome.kind for outcome in outcomes] == ["ok", kind, "ok"]
    assert str(status) in outcomes[1].why


def test_a_url_that_is_none_is_refused_before_anything_is_read() -> None:
    """https://github.com/redpanda-data/connect/issues/3007: with ``urls: ["foo"]`` each message counted as sent."""
    with pytest.raises(PlanError, match=r"foo.*http"):
        OpenSearch("foo", "bar")


# -- secrets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://smallstep:q^G$FJ%SECRET@w@db.example/ca?sslmode=verify-full",
        "postgresql+psycopg:://username:SECRET@db.example:8123/default",
        "postgresql//username:SECRET@db.example/default",
        "postgresql://db.example/default?user=a&password=SECRET",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(
    url: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """https://github.com/smallstep/certificates/issues/1522, https://github.com/sqlalchemy/sqlalchemy/issues/12579,
    https://github.com/risingwavelabs/risingwave/issues/19766: each printed the whole URL, as it could not read it."""
    (place / "plan.py").write_text(
        "from ferryman import Plan\nfrom ferryman.destinations import Sql\nfrom ferryman.sources import Memory\n"
        "plan = Plan('reports', version=1)\n"
        f"plan.source('docs', Memory([{{'id': 'a'}}])).destination('out', Sql({url!r}))\n"
    )
    for command in (["plan", "show"], ["plan", "check"], ["run"]):
        start([*command, str(place / "plan.py")])
    said = capsys.readouterr()
    assert "SECRET" not in said.out + said.err
    assert not [path for path in place.rglob("*.json") if b"SECRET" in path.read_bytes()]


# -- what reaches the wrong place ------------------------------------------------------------------------------------


def test_an_infinite_number_deep_in_a_field_is_named(place: Path) -> None:
    """https://github.com/elastic/elasticsearch-py/issues/486: ``{"Model": {"$": Infinity}}`` in a large document ended
    as "failed to parse", without a word on which field it was."""
    documents = [{"id": "good", "n": 1}, {"id": "bad", "Model": {"MPN": [{"$": 1.0}, {"$": float("inf")}]}}]

    summary = run_plan(plan_to(JsonLines(place / "out"), documents), place / "state")

    assert (summary.delivered, summary.rejected) == (1, 1)
    [row] = account.deliveries(place / "state" / "reports-v1", status="rejected")
    assert "Model" in row["message"]
    assert "inf" in row["message"]


def test_columns_that_differ_in_case_only_are_refused_when_the_plan_is_made(place: Path) -> None:
    """https://github.com/trinodb/trino/issues/2965: keys ``keyA`` and ``keya`` clashed when the first row came."""
    url = f"sqlite:///{place}/rows.db"
    with pytest.raises(PlanError, match="conflict and Conflict differ only in case"):
        Sql(url, columns={"conflict": "a", "Conflict": "b"})
    assert not (place / "rows.db").exists()


# -- chunks of a document that changes ---------------------------------------------------------------------------------


def numbered(doc: Document) -> Iterator[Document]:
    for line in doc.text().splitlines():
        key, _, text = line.partition(" ")
        yield doc.child(key, raw=text.encode(), only_if_changed=True)


def test_a_document_with_more_chunks_than_a_batch_is_not_sent_again(place: Path) -> None:
    """https://github.com/langchain-ai/langchain/issues/22135 and /issues/32612: of a document with 200 chunks, sent in
    batches of 100, each run deleted and made again those beyond the first batch."""
    world = PlanWorld.empty(place)
    end(world.source().step("numbered", numbered), world, batch=100)
    lines = [f"{n} data {n}" for n in range(200)]
    world.put("a", text="\n".join(lines))
    assert world.run().delivered == 200
    assert world.run().waves == 0
    lines[150] = "150 changed"
    world.put("a", text="\n".join(lines[:199]))
    assert world.run().exit == 0
    sent = [(line["op"], line["id"]) for line in world.out("out").lines()]
    assert sent[200:] == [("upsert", "a#150"), ("delete", "a#199")]


def test_old_chunks_stay_until_the_new_ones_are_there(place: Path) -> None:
    """https://github.com/GoogleCloudPlatform/agent-starter-pack/pull/878: one chunk of a batch was refused, the whole
    batch was dropped with it, and what was left was a mixture of old and new."""
    world = PlanWorld.empty(place)
    end(world.source().step("numbered", numbered), world, batch=10)
    world.put("a", text="old-1 x\nold-2 y\nsame z")
    world.run()
    world.out("out").answer = lambda d: Outcome.permanent("409: it exists") if d.id == "a#new-1" else Outcome.ok()
    world.put("a", text="new-1 x\nnew-2 y\nsame w")
    assert world.run().exit == 3
    assert "-a#old-1" not in world.arrived()
    assert "-a#old-2" not in world.arrived()
    assert world.arrived()["a#new-2"] == 1
    world.out("out").answer = None
    world.retry()
    assert world.run().exit == 0
    assert {"-a#old-1", "-a#old-2", "a#new-1"} <= set(world.arrived())


# -- code that has changed ---------------------------------------------------------------------------------------------


STEP = """
from ferryman import Plan
from ferryman.sources import Files, Memory
from ferryman.destinations import Null

def step(doc):
    doc["n"] = get_number()
    return doc

{after}

plan = Plan("reports")
plan.source("docs", Memory([])).step("step", step).destination("out", Null())
"""
INNER = "def get_number():\n    def internal():\n        return {}\n    return internal()\n"
GLOBAL = "def get_number():\n    return number\n\nnumber = {}\n"


@pytest.mark.parametrize("after", [INNER, GLOBAL], ids=["inner", "global"])
def test_a_change_behind_the_step_is_noticed(place: Path, after: str) -> None:
    """https://github.com/streamlit/streamlit/issues/2728: a function inside of a helper, and a global that is defined
    below what reads it, changed, and the old result was shown."""
    (place / "plan.py").write_text(STEP.format(after=after.format(42)))
    before = structure(load_plan(str(place / "plan.py")))
    assert not changes(before, structure(load_plan(str(place / "plan.py")))).code
    (place / "plan.py").write_text(STEP.format(after=after.format(100_000_000_000)))
    [changed] = changes(before, structure(load_plan(str(place / "plan.py")))).code
    assert changed.startswith("step (")


# -- deletes -----------------------------------------------------------------------------------------------------------


def test_a_delete_of_what_is_not_there_holds_up_nobody(index: SearchIndex, place: Path) -> None:
    """https://github.com/mozilla/sumo/issues/744: a delete was answered with 404, and the chunks behind it were not
    sent. And https://github.com/MHRA/products/issues/601: such a delete was an error, and tried again or not."""
    before = [{"id": f"d{n:02}", "n": n} for n in range(10)]
    run_plan(plan_to(OpenSearch(index.url, index.name), before, batch=4), place / "state")
    for each in before[:3]:  # by another program
        index.ask("DELETE", f"/_doc/{each['id']}?refresh=true")
    now = [{"id": f"e{n:02}", "n": n} for n in range(10)]
    plan = Plan("reports", version=1)
    source = plan.source("docs", Memory(now, max_deleted=1.0))
    source.destination("out", OpenSearch(index.url, index.name), backoff=0, batch=4)

    summary = run_plan(plan, place / "state")

    assert (summary.delivered, summary.deleted, summary.pending, summary.failed) == (10, 10, 0, 0)
    assert set(index.documents()) == {each["id"] for each in now}
    assert summary.exit == 3  # for what the other program did
    assert any("lacks some of what was delivered last" in message for message in summary.messages), summary.messages


def test_files_of_a_folder_that_is_gone_or_moved_are_deleted(place: Path) -> None:
    """https://github.com/dadoonet/fscrawler/issues/531: files whose folder had been removed, or moved, stayed in the
    index for ever, since the date of that folder was looked at."""
    for name in ("kept/a", "removed/b", "moved/c"):
        write(place / "corpus" / f"{name}.txt", name)
    os.utime(place / "corpus", (0, 0))
    plan = Plan("reports", version=1)
    out = Recorder(place / "out.jsonl")
    plan.source("files", Files(place / "corpus", max_deleted=1.0)).destination("out", out, backoff=0)
    run_plan(plan, place / "state")
    shutil.rmtree(place / "corpus" / "removed")
    (place / "corpus" / "moved").rename(place / "elsewhere")
    os.utime(place / "corpus", (0, 0))

    summary = run_plan(plan, place / "state")

    assert (summary.delivered, summary.deleted) == (0, 2)
    assert sorted(line["id"] for line in out.lines() if line["op"] == "delete") == ["moved/c.txt", "removed/b.txt"]


@pytest.mark.parametrize("phase", ["transform", "commit", "deliver", "settle"])
def test_a_delete_that_a_killed_run_had_found_is_found_again(place: Path, phase: str) -> None:
    """https://github.com/mmnto-ai/totem/issues/2151: a sync noted how far it had come before it had purged what it had
    seen deleted, so that no later sync saw those deletions."""
    out = Recorder(place / "out.jsonl")
    docs = [{"id": f"d{n}"} for n in range(4)]

    def run(count: int, observer: Watch | None = None) -> Any:
        plan = Plan("reports", version=1)
        plan.source("docs", Memory(docs[:count], max_deleted=1.0)).destination("out", out, backoff=0)
        return run_plan(plan, place / "state", observer=observer)

    run(4)
    with pytest.raises(Interrupted):
        run(2, Until(2, phase))
    run(2)
    deleted = [line["id"] for line in out.lines() if line["op"] == "delete"]
    assert set(deleted) == {"d2", "d3"}
    assert run(2).waves == 0


# -- a batch that fails as a whole -------------------------------------------------------------------------------------


def test_of_a_batch_that_one_row_makes_time_out_the_others_arrive(place: Path) -> None:
    """https://github.com/PostHog/posthog/pull/57146: one item made each request that it was in time out, also alone,
    and the batch was fetched again and again. And https://github.com/confluentinc/parallel-consumer/issues/887."""

    def before(chunk: list[Delivery]) -> None:
        if any(delivery.id == "d7" for delivery in chunk):
            raise TimeoutError("no answer within 60 s")

    out = Recorder(place / "out.jsonl", before=before)
    documents = [{"id": f"d{n}"} for n in range(20)]

    summary = run_plan(plan_to(out, documents, batch=20, attempts=3), place / "state", wait=600, **Sleeper().options())

    assert (summary.exit, summary.delivered, summary.failed, summary.pending) == (3, 19, 1, 0)
    assert set(out.arrived()) == {each["id"] for each in documents} - {"d7"}
    [row] = account.deliveries(place / "state" / "reports-v1", status="failed")
    assert row["document"] == "d7"


# -- tasks that run twice, and messages that kill ----------------------------------------------------------------------


def test_a_task_whose_second_attempt_makes_something_else(place: Path) -> None:
    """https://github.com/apache/spark/pull/25407: after a failure a partition may have other rows than in the attempt
    before, so that what was deduplicated by its number was lost or doubled. And https://github.com/apache/hudi/issues/284:
    the files of one attempt were taken with the result of another."""
    died = place / "died"

    def draw(doc: Document) -> Document:
        doc["drawn"] = random.random()
        if doc.id == "d7" and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return doc

    plan = Plan("reports", version=1)
    drawn = plan.source("docs", Memory([{"id": f"d{n}"} for n in range(10)])).step("draw", draw)
    fork = drawn.route("all", Duplicate())
    for name in ("one", "two"):
        fork.destination(name, Sql(f"sqlite:///{place}/{name}.db", columns={"drawn": "drawn"}), backoff=0)

    summary = run_plan(plan, place / "state", runner=InProcess(fork=True, failures=4))

    assert died.exists()
    assert (summary.exit, summary.delivered) == (0, 20)
    found = []
    for name in ("one", "two"):
        with sqlite3.connect(place / f"{name}.db") as database:
            found.append(dict(database.execute("SELECT id, drawn FROM documents").fetchall()))
    assert found[0] == found[1]
    assert len(found[0]) == 10


def test_a_message_that_kills_its_consumer_is_read_once(place: Path) -> None:
    """https://github.com/taskiq-python/taskiq-aio-pika/issues/35, https://github.com/celery/celery/issues/1628: such a
    message came back each time, or was taken as done. Here it is in doubt, by name, and those behind it go on."""
    once = Once(place)
    once.put(*range(1, 10))
    once.fail(5, "kill")
    summary = once.run(runner=InProcess(fork=True, failures=4))
    assert summary.in_doubt == 1
    assert once.seen()[5] == 1
    assert once.values() == [1, 2, 3, 4, 6, 7, 8, 9]
