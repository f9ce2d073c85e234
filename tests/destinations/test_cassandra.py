"""Cassandra keeps every promise of the port, on the real server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Cassandra, Delivery, Destination, DestinationContext, Guarantee, Outcome
from ferryman.destinations.cassandra import SUFFIX, write_time
from ferryman.errors import Misconfigured, PlanError, Unavailable
from ferryman.limits import SEQUENCE_MAX, SEQUENCE_PER_SECOND
from ferryman.net.cassandra import CassandraServers, Connection
from ferryman.testing.destinations import delete, delivery
from ferryman.testing.servers import ServerSuite
from tests.servers.cassandra import CassandraServer, ProtectedCassandra

pytest.importorskip("cassandra")
pytestmark = pytest.mark.server

KEYSPACE = "conformance"


def table_of(folder: Path) -> str:
    """A table's name for a test: its folder's, as far as Cassandra takes it."""
    return "t_" + "".join(c if c.isalnum() else "_" for c in folder.name)[-36:]


@pytest.fixture(scope="module")
def real(server: Callable[[str], Any]) -> CassandraServer:
    started: CassandraServer = server("cassandra")
    return started


@pytest.fixture
def operator(real: CassandraServer) -> Iterator[Connection]:
    """Somebody else at the same server, with a client of their own."""
    with CassandraServers(real.url).connection() as connection:
        yield connection


class TestCassandra(ServerSuite):
    keyed = True
    secret = "s3cret-0f-the-tests"
    trigger = b"some text"
    real: CassandraServer

    @pytest.fixture(autouse=True)
    def _server(self, real: CassandraServer, server: Callable[[str], Any]) -> None:
        self.real, self.start_server = real, server

    def server(self) -> tuple[str, int]:
        return "127.0.0.1", self.real.port

    def destination_at(self, folder: Path, host: str, port: int) -> Destination:
        return Cassandra(f"{host}:{port}", KEYSPACE, table_of(folder))

    def hashes(self, folder: Path) -> list[str]:
        with CassandraServers(self.real.url).connection() as reader:
            return [row[0] for row in reader.rows(f"SELECT delivery_hash FROM {KEYSPACE}.{table_of(folder)}")]

    def stop(self) -> None:
        self.real.kill()

    def start(self) -> None:
        self.real.start()

    def unfit(self, id: str, sequence: int) -> Delivery:
        return delivery(id, sequence, "x" * (5 << 20))

    def wrong_credentials(self, folder: Path) -> Destination:
        protected = self.start_server(ProtectedCassandra.name)
        return Cassandra(protected.url, KEYSPACE, table_of(folder), user="loader", password=self.secret)

    @pytest.mark.slow  # for the start of another server
    def test_wrong_credentials_are_for_a_person(self, tmp_path: Path) -> None:
        super().test_wrong_credentials_are_for_a_person(tmp_path)


def context(*, is_open: Callable[[], bool] | None = None) -> DestinationContext:
    return DestinationContext("plays", 1, "rows", 1, Guarantee.EXACTLY_ONCE, is_open=is_open)


def write(destination: Cassandra, *chunk: Delivery, is_open: Callable[[], bool] | None = None) -> list[Outcome]:
    destination.open(context(is_open=is_open))
    try:
        return destination.write(list(chunk))
    finally:
        destination.close()


@pytest.fixture
def destination(real: CassandraServer, tmp_path: Path) -> Cassandra:
    made = Cassandra(real.url, KEYSPACE, table_of(tmp_path))
    made.check()
    return made


NOW = int(time.time()) * SEQUENCE_PER_SECOND
"""A sequence of a state that is made now: 2.8 years ahead of the microseconds."""


def test_times_of_writes_are_in_the_past() -> None:
    """Today, and for every sequence that there may ever be; and they grow with it, one for one."""
    assert write_time(NOW) < time.time_ns() // 1000
    year_2106 = SEQUENCE_MAX // SEQUENCE_PER_SECOND * 1_000_000
    assert write_time(SEQUENCE_MAX) < year_2106
    assert write_time(NOW + 1) == write_time(NOW) + 1


@pytest.mark.rule("cassandra.operator")
def test_a_plain_delete_of_an_operator_takes_effect(destination: Cassandra, operator: Connection) -> None:
    """It has the current time; and the next version of the document is there again."""
    write(destination, delivery("a", NOW), delivery("b", NOW + 1))
    operator.rows(f"DELETE FROM {KEYSPACE}.{destination.table} WHERE id = 'a'")
    assert [each.id for each in destination.inventory(context())] == ["b"]
    newer = delivery("a", NOW + 2, "the next version")
    assert write(destination, newer) == [Outcome.ok()]
    assert {each.hash for each in destination.inventory(context(), ["a"])} == {newer.hash}


def test_a_column_that_an_operator_has_emptied_is_filled_again(destination: Cassandra, operator: Connection) -> None:
    """Nothing tells when that was; the next version is whole all the same."""
    write(destination, delivery("a", NOW))
    operator.rows(f"UPDATE {KEYSPACE}.{destination.table} SET text = null WHERE id = 'a'")
    assert write(destination, delivery("a", NOW + 1, "ours")) == [Outcome.ok()]
    hit = destination.lookup("a")
    assert hit is not None
    assert hit.text == "ours"
    assert [each.intact for each in destination.inventory(context())] == [True]


@pytest.mark.rule("cassandra.operator")
def test_a_plain_update_of_an_operator_does_not_survive_in_part(destination: Cassandra, operator: Connection) -> None:
    """A cell that somebody has written with a later time would stay for ever: the next version is written over it."""
    write(destination, delivery("a", NOW))
    operator.rows(f"UPDATE {KEYSPACE}.{destination.table} SET text = 'mine', fields = '{{}}' WHERE id = 'a'")
    [changed] = destination.inventory(context())
    assert changed.intact is False
    assert write(destination, delivery("a", NOW + 1, "ours")) == [Outcome.ok()]
    [stored] = destination.inventory(context())
    assert (stored.hash, stored.intact) == (delivery("a", NOW + 1).hash, True)
    assert write(destination, delivery("a", NOW)) == [Outcome.stale()]


def test_a_delete_removes_what_an_operator_wrote_in_between(destination: Cassandra, operator: Connection) -> None:
    write(destination, delivery("a", NOW))
    operator.rows(f"UPDATE {KEYSPACE}.{destination.table} SET text = 'mine' WHERE id = 'a'")
    assert write(destination, delete("a", NOW + 1)) == [Outcome.ok()]
    assert not list(destination.inventory(context()))
    assert write(destination, delivery("a", NOW)) == [Outcome.stale()]


def test_a_worker_of_a_closed_pass_does_not_write_again(destination: Cassandra, operator: Connection) -> None:
    """It may be years late; only the open pass writes over what somebody else has written."""
    write(destination, delivery("a", NOW))
    operator.rows(f"DELETE FROM {KEYSPACE}.{destination.table} WHERE id = 'a'")
    [outcome] = write(destination, delivery("a", NOW + 1), is_open=lambda: False)
    assert (outcome.kind, outcome.universal) == ("transient", False)
    assert not list(destination.inventory(context()))


@pytest.mark.rule("cassandra.late")
def test_every_write_names_every_column(destination: Cassandra) -> None:
    """A version without text and fields leaves nothing of the one before."""
    write(destination, delivery("a", NOW, "old", {"title": "old"}))
    write(destination, delivery("a", NOW + 1, None))
    with destination.servers.connection() as reader:
        assert [tuple(row) for row in reader.rows(f"SELECT text, fields FROM {KEYSPACE}.{destination.table}")] == [
            (None, "{}")
        ]


@pytest.mark.rule("cassandra.late")
def test_a_chunk_that_comes_again_changes_nothing(destination: Cassandra) -> None:
    """Whole, in part, in any order, and after newer deliveries: those are in force."""
    first = [delivery(f"doc-{i}", NOW + i) for i in range(20)]
    assert set(write(destination, *first)) == {Outcome.ok()}
    before = sorted(destination.inventory(context()))
    assert set(write(destination, *first[::-2])) == {Outcome.ok()}
    assert sorted(destination.inventory(context())) == before
    write(destination, delivery("doc-1", NOW + 30), delete("doc-2", NOW + 31))
    assert [o.kind for o in write(destination, *first)] == ["ok", "stale", "stale", *["ok"] * 17]
    assert all(each.intact for each in destination.inventory(context()))
    assert len(list(destination.inventory(context()))) == 19


def test_at_equal_times_nothing_is_lost(destination: Cassandra) -> None:
    """A delete wins over a write of the same time: no two deliveries have the same."""
    assert write(destination, delete("a", NOW)) == [Outcome.ok()]
    assert write(destination, delivery("a", NOW + 1)) == [Outcome.ok()]
    assert [each.id for each in destination.inventory(context())] == ["a"]


@pytest.mark.rule("cassandra.schema")
def test_another_table_is_named_and_left_alone(real: CassandraServer, operator: Connection, tmp_path: Path) -> None:
    name = table_of(tmp_path)
    Cassandra(real.url, KEYSPACE, "some_table").check()
    operator.define(f"CREATE TABLE {KEYSPACE}.{name} (id int, sequence text, PRIMARY KEY (id, sequence))")
    before = operator.columns_of(KEYSPACE, name)
    with pytest.raises(Misconfigured, match=rf"{KEYSPACE}\.{name} is there already.*column id is int, not text") as e:
        Cassandra(real.url, KEYSPACE, name).check()
    assert "Nothing was changed" in str(e.value)
    assert operator.columns_of(KEYSPACE, name) == before
    assert not operator.columns_of(KEYSPACE, name + SUFFIX)


@pytest.mark.rule("cassandra.schema")
def test_workers_make_no_tables(real: CassandraServer, operator: Connection, tmp_path: Path) -> None:
    """One that was dropped stays away until the driver's next check, which says so."""
    destination = Cassandra(real.url, KEYSPACE, table_of(tmp_path))
    destination.check()
    before = destination.identity()
    operator.define(f"DROP TABLE {KEYSPACE}.{destination.table}")
    with pytest.raises(Misconfigured, match="The next run makes it again"):
        write(destination, delivery("a", NOW))
    assert destination.identity() == ""
    destination.check()
    assert destination.identity() not in ("", before)


@pytest.mark.rule("cassandra.schema")
def test_a_schema_on_which_nodes_do_not_agree_is_waited_for(
    real: CassandraServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is made while they do not: a table that is made twice loses what was written to one of the two."""
    from cassandra.cluster import ControlConnection

    monkeypatch.setattr(ControlConnection, "wait_for_schema_agreement", lambda *_, **__: False)
    destination = Cassandra(real.url, KEYSPACE, table_of(tmp_path))
    with pytest.raises(Unavailable, match="do not agree on the schema"):
        destination.check()
    monkeypatch.undo()
    assert destination.identity() == ""


def test_it_knows_the_highest_sequence_of_each_state(destination: Cassandra) -> None:
    assert destination.highest_of(context()) is None
    write(destination, delivery("a", NOW), delete("b", NOW + 7))
    write(destination, delivery("a", NOW + 3))
    other = context()._replace(destination="others")
    assert (destination.highest_of(context()), destination.highest_of(other)) == (NOW + 7, None)
    assert destination.highest_sequence() == NOW + 7


def test_ids_up_to_the_limit_are_documents(destination: Cassandra) -> None:
    """One that is longer is refused alone, with its size and the limit; so is an empty one."""
    longest, longer = "x" * 65_528, "y" * 65_536
    outcomes = write(destination, delivery(longest, NOW), delivery(longer, NOW + 1), delivery("", NOW + 2))
    assert [each.kind for each in outcomes] == ["ok", "permanent", "permanent"]
    assert "65543 bytes; Cassandra takes 65535" in outcomes[1].why
    assert [each.id for each in destination.inventory(context(), [longest, longer, ""])] == [longest]


def test_a_document_can_be_looked_up(destination: Cassandra) -> None:
    write(destination, delivery("a", NOW, "the text", {"title": "The title"}))
    hit = destination.lookup("a")
    assert hit is not None
    assert (hit.title, hit.text, hit.fields) == ("The title", "the text", {"title": "The title"})
    assert destination.lookup("b") is None


def test_a_url_names_hosts_user_and_place() -> None:
    made = Cassandra.from_url("cassandra://loader:${SECRET}@db-1,db-2:9043,[::1]:9044/search.pages")
    assert made.servers.hosts == (("db-1", 9042), ("db-2", 9043), ("::1", 9044))
    assert (made.servers.user, made.servers.password) == ("loader", "${SECRET}")
    assert (made.keyspace, made.table) == ("search", "pages")
    assert made.target() == "cassandra://db-1,db-2:9043,[::1]:9044/search.pages"


@pytest.mark.parametrize(
    ("arguments", "finding"),
    [
        (("", "k"), "give host or host:port"),
        (("db one", "k"), "give host or host:port"),
        (("db", "no-dashes"), "keyspace='no-dashes'"),
        (("db", "k", 'quoted"'), "table="),
        (("db", "k", "t" * 45), "48 characters at most"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: tuple[str, ...], finding: str) -> None:
    with pytest.raises(PlanError, match=finding):
        Cassandra(*arguments)
