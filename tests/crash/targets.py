"""Real servers as destinations of the crash tests: how a plan reaches one, and what a reader finds there.

A server is a row of ``TARGETS``. A case has a place of its own there (an index, a table), named after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import psycopg
import pymysql
import redis
from psycopg import sql

from ferryman.destinations import Cassandra, Destination, OpenSearch, Redis, Solr, Sql
from ferryman.destinations.base import Delivery, Outcome
from ferryman.destinations.sql.mysql import quoted
from ferryman.document import Document
from ferryman.net.cassandra import CassandraServers
from ferryman.plan import Plan
from ferryman.sources import Files
from tests.crash import scenario
from tests.destinations.search_index import SearchIndex
from tests.servers.mysql import DATABASE, PASSWORD, USER
from tests.support.zygote import Zygote

FIELD = "year"
"""A number in every document but one, which all servers refuse for good."""

DESTINATION = "destination.pickle"


@dataclass(frozen=True)
class Target:
    """A server as a destination.

    Attributes:
        server: its name in tests/servers.
        destination: (server, place) -> the destination; in code too, for a plan file.
        contents: (server, place) -> id -> text of what is there.
    """

    server: str
    destination: Callable[[Any, str], Destination]
    code: Callable[[Any, str], str]
    contents: Callable[[Any, str], dict[str, str]]


def _opensearch(server: Any, place: str) -> Destination:
    return OpenSearch(server.url, place, {"properties": {FIELD: {"type": "long"}}})


def _opensearch_contents(server: Any, place: str) -> dict[str, str]:
    return {id: source["text"] for id, source in SearchIndex(server.url, place).documents().items()}


def _solr(server: Any, place: str) -> Destination:
    return Solr(server.collection(place, "versions"), versions=server.delete_parameter)


def _solr_code(server: Any, place: str) -> str:
    url = server.collection(place, "versions")
    return f"from ferryman.destinations import Solr\nout = Solr({url!r}, versions={server.delete_parameter!r})"


def _solr_contents(server: Any, place: str) -> dict[str, str]:
    return {found["id"]: found["text"] for found in server.documents(place, fq="ferryman_hash_s:*")}


def _postgres(server: Any, place: str) -> Destination:
    """Its table has what a table of somebody's own may have: a rule."""
    made = Sql(server.url, place, mode="append", columns={FIELD: FIELD})
    made.check()
    rule = sql.SQL("ALTER TABLE {} ADD CHECK ({}::text !~ '[A-Z]')")
    with psycopg.connect(server.url) as connection:
        connection.execute(rule.format(sql.Identifier(place), sql.Identifier(FIELD)))
    return made


def _postgres_contents(server: Any, place: str) -> dict[str, str]:
    """What is left when every row takes effect; no delivery has two."""
    what = sql.SQL("SELECT operation, id, text, delivery_hash FROM {} ORDER BY sequence").format(sql.Identifier(place))
    with psycopg.connect(server.url) as connection:
        return _effect_of(connection.execute(what).fetchall())


def _effect_of(rows: Sequence[tuple[Any, ...]]) -> dict[str, str]:
    """Return id -> text after all rows of a table of changes: (operation, id, text, hash), in their order."""
    assert len({digest for *_, digest in rows}) == len(rows), "delivered twice"
    last = {id: (operation, text) for operation, id, text, _ in rows}
    return {id: text for id, (operation, text) in last.items() if operation == "upsert"}


def _mariadb(server: Any, place: str) -> Destination:
    made = Sql(server.url_of(DATABASE), place, mode="append", columns={FIELD: FIELD})
    made.check()
    _ask_mariadb(server, f"ALTER TABLE {quoted(place)} ADD CHECK ({quoted(FIELD)} NOT REGEXP '[A-Z]')")
    return made


def _mariadb_contents(server: Any, place: str) -> dict[str, str]:
    columns = "operation, CAST(id AS CHAR), text, CAST(delivery_hash AS CHAR)"
    return _effect_of(_ask_mariadb(server, f"SELECT {columns} FROM {quoted(place)} ORDER BY sequence"))


def _ask_mariadb(server: Any, statement: str) -> Sequence[tuple[Any, ...]]:
    where = {"host": "127.0.0.1", "port": server.port, "user": USER, "password": PASSWORD, "database": DATABASE}
    with closing(pymysql.connect(**where, autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def _table(place: str) -> str:
    return "t_" + "".join(c if c.isalnum() else "_" for c in place)


class OnlyNumbers(Destination):
    """A destination that refuses documents whose field is not a number, as an index of numbers would."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        fit = [d for d in chunk if d.operation == "delete" or isinstance(d.fields.get(FIELD), int)]
        answers = iter(super().write(fit))
        return [next(answers) if d in fit else Outcome.permanent(f"{FIELD} is not a number") for d in chunk]


class NumbersInCassandra(OnlyNumbers, Cassandra):
    """A table beside which its operator has an index of numbers."""


class NumbersInRedis(OnlyNumbers, Redis):
    """Redis alone takes whatever comes."""


def _redis(server: Any, place: str) -> Destination:
    return NumbersInRedis(server.url, f"{place}:")


def _redis_contents(server: Any, place: str) -> dict[str, str]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        keys = list(client.scan_iter(f"{place}:*", count=1000))
        return {key.removeprefix(f"{place}:"): str(client.hget(key, "text")) for key in keys}


def _cassandra(server: Any, place: str) -> Destination:
    return NumbersInCassandra(server.url, "crash", _table(place))


def _cassandra_contents(server: Any, place: str) -> dict[str, str]:
    with CassandraServers(server.url).connection() as reader:
        return {row.id: row.text for row in reader.rows(f"SELECT id, text FROM crash.{_table(place)}")}


TARGETS = {
    "opensearch": Target(
        "opensearch",
        _opensearch,
        lambda server, place: (
            f"from ferryman.destinations import OpenSearch\nout = OpenSearch({server.url!r}, {place!r})"
        ),
        _opensearch_contents,
    ),
    "solr": Target("solr", _solr, _solr_code, _solr_contents),
    "postgres": Target(
        "postgres",
        _postgres,
        lambda server, place: (
            f"from ferryman.destinations import Sql\nout = Sql({server.url!r}, {place!r}, mode='append')"
        ),
        _postgres_contents,
    ),
    "cassandra": Target(
        "cassandra",
        _cassandra,
        lambda server, place: (
            f"from ferryman.destinations import Cassandra\nout = Cassandra({server.url!r}, 'crash', {_table(place)!r})"
        ),
        _cassandra_contents,
    ),
    "mariadb": Target(
        "mariadb",
        _mariadb,
        lambda server, place: (
            f"from ferryman.destinations import Sql\nout = Sql({server.url_of(DATABASE)!r}, {place!r}, mode='append')"
        ),
        _mariadb_contents,
    ),
    "redis": Target(
        "redis",
        _redis,
        lambda server, place: f"from ferryman.destinations import Redis\nout = Redis({server.url!r}, {place + ':'!r})",
        _redis_contents,
    ),
}


def year(doc: Document) -> Document:
    doc[FIELD] = "MDC" if doc.id == scenario.REFUSED else len(doc.text())
    return doc


def keep(root: Path, destination: Destination) -> None:
    """For the processes that run the plan."""
    (root / DESTINATION).write_bytes(cloudpickle.dumps(destination))


def make_plan(root: Path) -> Plan:
    """The scenario's corpus into the destination that is kept there."""
    destination = cloudpickle.loads((root / DESTINATION).read_bytes())
    plan = Plan("crash", version=1)
    files = plan.source("files", Files(str(root / "corpus"), fields=False))
    files.step("year", year).destination("log", destination, batch=scenario.BATCH, backoff=0, attempts=3)
    return plan


def wanted() -> dict[str, str]:
    """Id -> text of what must be there after the second run, by the corpus alone."""
    silent = {scenario.BAD, scenario.REFUSED}
    return {id: content.decode() for id, content in scenario.second_corpus().items() if id not in silent}


def check(status: dict[str, Any]) -> None:
    """The ledger against the corpora, after the second run."""
    assert status["balanced"], status
    first, second = scenario.first_corpus(), scenario.second_corpus()
    counts = {kind: n for kind, n in status["destinations"]["log"].items() if n}
    gone = len(first.keys() - second)
    assert counts == {"delivered": len(wanted()), "deleted": gone, "rejected": 1, "failed": 1}, counts


def survive(server: Callable[[str], Any], zygote: Zygote, folder: Path, name: str, point: str) -> None:
    """Kill a run into a target at a crash point, start it again, and compare what is there.

    Changed, removed, new, unreadable and refused documents are each there once, or accounted for.
    """
    target, real = TARGETS[name], server(TARGETS[name].server)
    root = folder / f"{name}-{point}"
    root.mkdir()
    place = f"crash-{point}".replace(".", "-")
    keep(root, target.destination(real, place))
    job = {"root": str(root), "guarantee": name, "shape": "server"}
    scenario.write_corpus(root, scenario.first_corpus())
    code, said = zygote.run(verb="run", **job)
    assert code == 0, said
    scenario.write_corpus(root, scenario.second_corpus())
    seen = root / "killed"
    code, said = zygote.run(verb="run", arm=[(point, str(seen))], **job)
    assert code in (0, -9), said
    assert seen.exists(), f"{point} was never reached"
    for _ in range(2):
        code, said = zygote.run(verb="run and check", **job)
        assert code == 0, said
        assert target.contents(real, place) == wanted()
