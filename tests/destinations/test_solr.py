"""The ``Solr`` destination, against a real server."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ferryman import Plan
from ferryman.destinations import Delivery, Destination, DestinationContext, Guarantee, Outcome, Solr
from ferryman.destinations.solr import Collection
from ferryman.errors import PermanentError, TransientError
from ferryman.plan import DestinationNode
from ferryman.retrieval.search import search
from ferryman.sources import Memory
from ferryman.testing.destinations import delete, delivery
from ferryman.testing.servers import ServerSuite
from tests.destinations.conftest import TlsServer
from tests.destinations.plays import check_an_engine
from tests.servers.solr import SolrServer
from tests.support.gate import API_KEY, PASSWORD, USER, Gate
from tests.support.plan_world import PlanWorld, Watch
from tests.support.receiver import Receiver, Reply


@pytest.fixture(scope="module")
def solr(server: Callable[[str], Any]) -> SolrServer:
    found: SolrServer = server("solr")
    return found


def name_of(folder: Path) -> str:
    """A test's own collection."""
    return f"{folder.parent.name}-{folder.name}"


class Promises(ServerSuite):
    """What both kinds of collections keep."""

    keyed = True
    trigger = b"/update"
    streams = True
    kind: str
    versions: str | None

    @pytest.fixture(autouse=True)
    def _solr(self, solr: SolrServer, tmp_path: Path) -> Iterator[None]:
        self.solr = solr
        solr.collection(name_of(tmp_path), self.kind)
        yield
        solr.get("/admin/cores", action="UNLOAD", core=name_of(tmp_path), deleteInstanceDir="true")

    def server(self) -> tuple[str, int]:
        return "127.0.0.1", self.solr.port

    def destination_at(self, folder: Path, host: str, port: int) -> Destination:
        return Solr(f"http://{host}:{port}/solr/{name_of(folder)}", versions=self.versions)

    def destination(self, folder: Path) -> Destination:
        return self.destination_at(folder, "127.0.0.1", self.solr.port if hasattr(self, "solr") else 1)

    def hashes(self, folder: Path) -> list[str]:
        found = self.solr.documents(name_of(folder), fq="ferryman_hash_s:*")
        return [document["ferryman_hash_s"] for document in found]

    def unfit(self, id: str, sequence: int) -> Delivery:
        return delivery(id, sequence, fields={"words": "many"})

    def stop(self) -> None:
        self.solr.kill()

    def start(self) -> None:
        self.solr.start()


class TestPlain(Promises):
    kind, versions = "plain", None


class TestVersions(Promises):
    kind, versions = "versions", SolrServer.delete_parameter


del Promises  # pytest would collect it


@pytest.fixture
def plays(solr: SolrServer, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty collection without versions."""
    yield solr.collection(tmp_path.name)
    solr.get("/admin/cores", action="UNLOAD", core=tmp_path.name, deleteInstanceDir="true")


@pytest.fixture
def guarded(solr: SolrServer, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty collection that compares versions."""
    yield solr.collection(f"{tmp_path.name}-versions", "versions")
    solr.get("/admin/cores", action="UNLOAD", core=f"{tmp_path.name}-versions", deleteInstanceDir="true")


def opened(url: str, **options: Any) -> Solr:
    made = Solr(url, **options)
    made.check()
    made.open(DestinationContext("plan", 1, "index", 1, Guarantee.AT_LEAST_ONCE))
    return made


def there(solr: SolrServer, url: str) -> dict[str, dict[str, Any]]:
    """id -> document; tombstones too."""
    return {found["id"]: found for found in solr.documents(url.rpartition("/")[2])}


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_what_a_document_becomes(solr: SolrServer, plays: str) -> None:
    """Fields as they are, id, text, hash and sequence; what Solr would take for an order is text."""
    fields = {
        "title": ["One", "Two"],
        "words": 7,
        "draft_b": True,
        "set_s": {"set": "changed"},
        "none_s": None,
        "id": "a field named id",
        "text": "and text",
    }
    chunk = [delivery("a", 1, "the text", fields), delivery("b", 2, None, {"text": "of the fields"})]
    assert opened(plays).write(chunk) == [Outcome.ok()] * 2
    found = there(solr, plays)
    a, b = ({k: v for k, v in found[id].items() if k not in ("_version_", "_root_")} for id in "ab")
    assert a == {
        "id": "a",
        "text": "the text",
        "title": ["One", "Two"],
        "words": 7,
        "draft_b": True,
        "set_s": '{"set":"changed"}',
        "ferryman_hash_s": chunk[0].hash,
        "ferryman_sequence_l": 1,
        "ferryman_origin_s": f'["files","{chunk[0].version}",[]]',
    }
    assert b["text"] == "of the fields"


def test_names_of_its_fields_can_be_chosen(solr: SolrServer, plays: str) -> None:
    """Text, hash and sequence."""
    out = opened(plays, text="body_s", hash_field="h_s", sequence_field="n_l")
    for sequence, kind in ((5, "ok"), (4, "stale"), (5, "ok")):
        assert [o.kind for o in out.write([delivery("a", sequence, f"text {sequence}")])] == [kind]
    [found] = there(solr, plays).values()
    assert (found["body_s"], found["h_s"], found["n_l"]) == ("text 5", delivery("a", 5).hash, 5)


def test_fields_that_have_a_meaning_are_refused(plays: str) -> None:
    """One by one, with what to do."""
    chunk = [
        delivery("a", 1, fields={"_version_": 1}),
        delivery("b", 2, fields={"ferryman_hash_s": "x"}),
        delivery("c", 3),
    ]
    outcomes = opened(plays).write(chunk)
    assert [o.kind for o in outcomes] == ["permanent", "permanent", "ok"]
    assert "a field is called _version_, which has a meaning of its own" in outcomes[0].why


def test_it_can_be_found_soon(solr: SolrServer, plays: str) -> None:
    """Within ``commit_within_ms``, without a commit of anybody's."""
    opened(plays, commit_within_ms=50).write([delivery("a", 1, "muse of fire")])
    name = plays.rpartition("/")[2]
    give_up = time.monotonic() + 300
    while not solr.get(f"/{name}/select", q="fire")["response"]["numFound"]:
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_it_can_be_searched(solr: SolrServer, guarded: str) -> None:
    """As a database is: all words, phrases, beginnings, alternatives, ß; nothing that is typed is an error, and what
    was deleted is not found."""
    made = opened(guarded, versions=solr.delete_parameter, commit_within_ms=50)
    made.write(
        [
            delivery("henry", 1, "O for a Muse of fire", {"title": "King Henry V"}),
            delivery("berlin", 2, "In der Straße", {"title": "Berlin"}),
            delivery("gone", 3, "Muse", {}),
        ]
    )
    made.write([delete("gone", 4)])
    solr.get(f"/{guarded.rpartition('/')[2]}/update", commit="true")
    check_an_engine(search, guarded)


# --- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.rule("solr.once")
@pytest.mark.parametrize("kind", ["plain", "versions"])
def test_somebody_who_is_faster_is_seen(
    solr: SolrServer, plays: str, guarded: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """What changes between the look and the write is compared again: what is newer stays, and is not overwritten."""
    url = plays if kind == "plain" else guarded
    options = {} if kind == "plain" else {"versions": solr.delete_parameter}
    look = Collection.known
    between = [delivery("a", 9, "newer"), delivery("b", 3, "older"), delivery("new", 9, "newer"), delete("gone", 9)]
    opened(url, **options).write([delivery(id, 1, "first") for id in ("a", "b", "gone")])

    def looked(self: Collection, ids: Any) -> Any:
        found = look(self, ids)
        if between:
            chunk = between[:]
            between.clear()
            assert {o.kind for o in opened(url, **options).write(chunk)} == {"ok"}
        return found

    monkeypatch.setattr(Collection, "known", looked)
    chunk = [delivery("a", 5), delivery("b", 5), delivery("new", 5), delivery("other", 5), delete("gone", 5)]
    outcomes = opened(url, **options).write(chunk)
    assert [o.kind for o in outcomes] == ["stale", "ok", "stale", "ok", "ok" if kind == "plain" else "stale"]
    found = {id: d["ferryman_sequence_l"] for id, d in there(solr, url).items() if "ferryman_hash_s" in d}
    assert found == {"a": 9, "b": 5, "new": 9, "other": 5}


def test_without_versions_a_delete_is_not_remembered(solr: SolrServer, plays: str) -> None:
    """The limit that the reference tells: an older upsert after a delete brings the document back."""
    out = opened(plays)
    out.write([delivery("a", 1), delete("a", 3)])
    assert there(solr, plays) == {}
    assert out.write([delivery("a", 2)]) == [Outcome.ok()]
    assert there(solr, plays).keys() == {"a"}
    assert not out.compares_sequences
    assert not out.transactional


@pytest.mark.rule("solr.once")
def test_with_versions_it_is_transactional(solr: SolrServer, guarded: str) -> None:
    """So that the guarantee is exactly-once; a delete leaves a document without a hash, and refuses what is older."""
    out = opened(guarded, versions=solr.delete_parameter)
    assert out.transactional
    plan = Plan("plan")
    plan.source("files", Memory([])).destination("index", out)
    assert [n.policy.guarantee for n in plan.nodes if isinstance(n, DestinationNode)] == [Guarantee.EXACTLY_ONCE]
    assert out.write([delivery("a", 1), delete("a", 3)]) == [Outcome.ok()] * 2
    [tombstone] = there(solr, guarded).values()
    assert "ferryman_hash_s" not in tombstone
    assert out.write([delivery("a", 2), delete("a", 3)]) == [Outcome.stale(), Outcome.ok()]
    assert out.write([delivery("a", 4)]) == [Outcome.ok()]


@pytest.mark.rule("solr.once")
@pytest.mark.slow
def test_a_server_that_reads_its_log_is_waited_for(solr: SolrServer, plays: str) -> None:
    """After a crash it answers before it sees what it has: an older version would be taken."""
    rows = [delivery(f"d{i}", 1000 + i, "some words " * 50) for i in range(10_000)]
    out = opened(plays)
    for start in range(0, len(rows), 1000):
        assert {o.kind for o in out.write(rows[start : start + 1000])} == {"ok"}
    solr.kill()
    solr.start()
    give_up = time.monotonic() + 300
    while True:
        try:
            outcomes = out.write([delivery("d9999", 1, "older")])
            break
        except (TransientError, ConnectionError):
            assert time.monotonic() < give_up
            time.sleep(0.02)
    assert outcomes == [Outcome.stale()]
    assert there(solr, plays)["d9999"]["ferryman_sequence_l"] == 10_999


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.rule("solr.once")
def test_many_are_refused(solr: SolrServer, plays: str) -> None:
    """Each for itself, with Solr's words; the others are there."""
    bad = set(range(0, 120, 7)) | {118, 119}
    chunk = [delivery(f"d{i}", i + 1, fields={"words": "x" if i in bad else i}) for i in range(120)]
    outcomes = opened(plays).write(chunk)
    assert [o.kind for o in outcomes] == ["permanent" if i in bad else "ok" for i in range(120)]
    assert len({outcomes[i].why for i in bad}) == 1
    assert "Error adding field 'words'='x'" in outcomes[0].why
    assert there(solr, plays).keys() == {f"d{i}" for i in range(120) if i not in bad}


def test_what_is_not_there_is_told(solr: SolrServer, plays: str, guarded: str) -> None:
    """A collection, a field, a chain, a version: by ``check``, or by the first write that needs it."""
    for out, says in (
        (Solr(f"{solr.url}/nobody"), "answered 404 .*make the collection, or correct the URL"),
        (Solr(plays, sequence_field="sequence"), "its schema has no field sequence"),
        (Solr(plays, versions="ferryman_sequence"), "no update chain of it has a DocBasedVersionConstraints"),
        (Solr(solr.url.removesuffix("/solr")), "answered 404|is this the URL of a collection"),
    ):
        with pytest.raises(PermanentError, match=says) as caught:
            out.check()
        assert caught.value.universal
    opened(guarded).write([delivery("a", 1)])
    with pytest.raises(PermanentError, match=r"say versions=, with this parameter's name") as unversioned:
        opened(guarded).write([delete("a", 2)])
    assert unversioned.value.universal


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (503, TransientError),
        (429, TransientError),
        (502, ConnectionError),
        (504, ConnectionError),
        (403, PermanentError),
    ],
)
def test_what_solr_says_of_itself(status: int, error: type[Exception]) -> None:
    """It is about the whole destination."""
    with Receiver(lambda _: Reply(status, b'{"error": {"msg": "no room"}}')) as receiver:
        out = Solr(receiver.url)
        out.open(DestinationContext("plan", 1, "index", 1, Guarantee.AT_LEAST_ONCE))
        with pytest.raises(error, match=rf"answered {status} .*\(no room\)") as caught:
            out.write([delivery("a", 1)])
        assert isinstance(caught.value, ConnectionError) or caught.value.universal  # type: ignore[attr-defined]


def test_tls_and_credentials(
    solr: SolrServer, plays: str, tls_server: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password from the environment, over TLS; a wrong one is for a person, and is shown to nobody."""
    with Gate(tls_server.context, tls_server.ca, "127.0.0.1", solr.port) as gate:
        url = f"{gate.url}/solr/{plays.rpartition('/')[2]}"
        monkeypatch.setenv("SOLR_PASSWORD", PASSWORD)
        options: dict[str, Any] = {"auth": (USER, "${SOLR_PASSWORD}"), "ca": str(gate.ca)}
        out = opened(url, **options)
        assert PASSWORD not in f"{out!r}{out.target()}{pickle.dumps(out)!r}"
        assert out.write([delivery("a", 1)]) == [Outcome.ok()]
        assert opened(url, auth="Bearer " + API_KEY, ca=str(gate.ca)).write([delivery("a", 1)]) == [Outcome.ok()]
        gate.forbidden = "/update"
        with pytest.raises(PermanentError, match=r"answered 403 .*correct auth=, or what this user may do"):
            out.write([delivery("b", 1)])
        monkeypatch.setenv("SOLR_PASSWORD", "wrong-pässword")
        with pytest.raises(PermanentError, match=r"answered 401 .*correct auth=") as caught:
            Solr(url, **options).check()
        assert "wrong" not in str(caught.value)
        with pytest.raises(PermanentError, match="its certificate is refused"):
            Solr(url, auth=options["auth"]).check()


# --- through the engine -----------------------------------------------------------------------------------------------


class Restarting(Watch):
    """Kills the server when the first delivering begins; it comes back by itself."""

    def __init__(self, solr: SolrServer) -> None:
        super().__init__()
        self._solr = solr
        self.back: Future[Any] | None = None

    def phase(self, wave: int, name: str) -> None:
        super().phase(wave, name)
        if name == "deliver" and self.back is None:
            self._solr.kill()
            self.back = ThreadPoolExecutor(1).submit(self._solr.start)


@pytest.mark.rule("solr.once")
def test_the_server_is_killed_in_the_middle_of_a_run(solr: SolrServer, guarded: str, trial: PlanWorld) -> None:
    """It is waited for; then all is there, what cannot be indexed is dead, and a changed document replaces the old."""
    trial.put(*(f"doc-{i:02}" for i in range(44)))
    trial.documents[7]["words"] = "not a number"
    trial.build(out=Solr(guarded, versions=solr.delete_parameter), batch=10)  # type: ignore[arg-type]
    watch = Restarting(solr)
    summary = trial.run(wait=120, observer=watch)
    assert watch.back is not None
    watch.back.result()
    assert (summary.exit, trial.counts()) == (3, {"delivered": 43, "failed": 1})
    assert there(solr, guarded).keys() == {f"doc-{i:02}" for i in range(44) if i != 7}
    trial.put("doc-03", text="changed")
    trial.drop("doc-04", "doc-07")
    assert trial.run().exit == 0
    found = there(solr, guarded)
    assert found["doc-03"]["text"] == "changed"
    assert {id for id, d in found.items() if "ferryman_hash_s" in d} == {
        f"doc-{i:02}" for i in range(44) if i not in (4, 7)
    }
