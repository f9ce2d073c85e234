"""``verify`` on real servers: a hundred differences of each kind are found and repaired, and nothing else is said."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
import redis
import urllib3

from ferryman.destinations import Destination, OpenSearch, Redis, Solr, Sql
from ferryman.errors import Misconfigured
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.verification import Verification, adopt, verify
from tests.destinations.mysql import MySqlDatabase, mysql_database
from tests.destinations.postgres import Database, database, postgres
from tests.destinations.search_index import SearchIndex, index, opensearch
from tests.servers.redis import PASSWORD, RedisServer
from tests.servers.solr import SolrServer
from tests.support.plan_world import PlanWorld

__all__ = ["database", "index", "mysql_database", "opensearch", "postgres"]

IDS = [f"library/shelf-{n % 7}/volume-{n:04d}-of-the-catalogue" for n in range(500)]
CHANGED, OLDER, LOST, DELETED, UNTOUCHED = (IDS[start : start + 100] for start in range(0, 500, 100))

ADDED = "added by hand/"

_pool = urllib3.PoolManager()


class Store(Protocol):
    """A target, as somebody else may change it."""

    def save(self) -> None:
        """Keep a copy of what is there."""

    def change(self, ids: Sequence[str]) -> None:
        """Write another title, and nothing else."""

    def lose(self, ids: Sequence[str]) -> None:
        """Delete documents."""

    def put_back(self, ids: Sequence[str]) -> None:
        """Write documents as they were when the copy was made."""

    # ``add`` writes copies of documents under other ids, ``ADDED`` before each; not where another list has the ids.


class InTable:
    """A table of ``Sql``; a subclass has the words of its database."""

    changes: Sequence[str]
    """What is set in a row: of each, a share of the ids."""
    among: str
    """The condition that an id is one of several."""
    renamed: str

    def __init__(self, database: Database | MySqlDatabase) -> None:
        self._database = database

    def save(self) -> None:
        self._database.query("CREATE TABLE saved AS SELECT * FROM documents")

    def change(self, ids: Sequence[str]) -> None:
        for share, change in enumerate(self.changes):
            self._database.query(f"UPDATE documents SET {change} WHERE {self.among}", list(ids[share::4]))

    def lose(self, ids: Sequence[str]) -> None:
        self._database.query(f"DELETE FROM documents WHERE {self.among}", list(ids))

    def put_back(self, ids: Sequence[str]) -> None:
        self.lose(ids)
        self._database.query(f"INSERT INTO documents SELECT * FROM saved WHERE {self.among}", list(ids))

    def add(self, ids: Sequence[str]) -> None:
        self._database.query(f"CREATE TABLE added AS SELECT * FROM documents WHERE {self.among}", list(ids))
        self._database.query(f"UPDATE added SET id = {self.renamed}", ADDED)
        self._database.query("INSERT INTO documents SELECT * FROM added")


class InPostgres(InTable):
    changes = (
        "title = 'other'",
        "fields = jsonb_set(fields, '{price}', '1.26')",
        "text = text || '.'",
        "rank = rank + 1",
    )
    among, renamed = "id = ANY(%s)", "%s || id"


class InMySql(InTable):
    changes = (
        "title = 'other'",
        "fields = JSON_SET(fields, '$.price', 1.26)",
        "text = CONCAT(text, '.')",
        "`rank` = `rank` + 1",
    )
    among, renamed = "id IN %s", "CONCAT(%s, id)"


class InRedis:
    """A document that is put back has its entry in the table of versions, too, as in a copy of the database."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._versions = f"ferryman:{prefix}versions"

    def save(self) -> None:
        self._saved: dict[str, Any] = {}
        for id, version in self._client.hgetall(self._versions).items():
            self._saved[id.decode()] = (version, self._client.hgetall(f"{self._prefix}{id.decode()}"))

    def change(self, ids: Sequence[str]) -> None:
        for id in ids:
            self._client.hset(f"{self._prefix}{id}", "title", "other")

    def lose(self, ids: Sequence[str]) -> None:
        self._client.delete(*(f"{self._prefix}{id}" for id in ids))

    def put_back(self, ids: Sequence[str]) -> None:
        for id in ids:
            version, fields = self._saved[id]
            self._client.hset(self._versions, id, version)
            self._client.delete(f"{self._prefix}{id}")
            self._client.hset(f"{self._prefix}{id}", mapping=fields)


@pytest.fixture
def in_redis(server: Callable[[str], RedisServer], tmp_path: Path) -> Iterator[tuple[Redis, InRedis]]:
    real, prefix = server("redis"), f"{tmp_path.name}:"
    with redis.Redis(port=real.port, password=PASSWORD) as client:
        yield Redis(real.url, prefix), InRedis(client, prefix)


class InOpenSearch:
    def __init__(self, index: SearchIndex) -> None:
        self._index = index

    def save(self) -> None:
        self._saved = self._index.documents()

    def change(self, ids: Sequence[str]) -> None:
        now = self._index.documents()
        self.write([({"index": {"_id": id}}, {**now[id], "title": "other"}) for id in ids])

    def lose(self, ids: Sequence[str]) -> None:
        self.write([({"delete": {"_id": id}},) for id in ids])

    def put_back(self, ids: Sequence[str]) -> None:
        self.write([({"index": {"_id": id}}, self._saved[id]) for id in ids])

    def add(self, ids: Sequence[str]) -> None:
        now = self._index.documents()
        self.write([({"index": {"_id": ADDED + id}}, now[id]) for id in ids])

    def write(self, operations: Sequence[tuple[Any, ...]]) -> None:
        body = "".join(json.dumps(line) + "\n" for lines in operations for line in lines)
        url, headers = f"{self._index.url}/{self._index.name}/_bulk", {"content-type": "application/x-ndjson"}
        answer = json.loads(_pool.request("POST", url, body=body.encode(), headers=headers).data)
        assert not answer["errors"], answer


class InSolr:
    """Whose content is not compared, so that another delivery stands in the place of a changed one."""

    def __init__(self, solr: SolrServer, name: str) -> None:
        self._solr = solr
        self._name = name

    def save(self) -> None:
        self._saved = {each["id"]: each for each in self._solr.documents(self._name)}

    def change(self, ids: Sequence[str]) -> None:
        self.edit(ids, ferryman_hash_s="f" * 32)

    def edit(self, ids: Sequence[str], **fields: Any) -> None:
        self._add([{**self._saved[id], **fields} for id in ids])

    def lose(self, ids: Sequence[str]) -> None:
        self._post({"delete": list(ids)})

    def put_back(self, ids: Sequence[str]) -> None:
        self._add([self._saved[id] for id in ids])

    def add(self, ids: Sequence[str]) -> None:
        self._add([{**self._saved[id], "id": ADDED + id} for id in ids])

    def _add(self, documents: Sequence[dict[str, Any]]) -> None:
        own = ("_version_", "_root_")
        self._post([{name: value for name, value in each.items() if name not in own} for each in documents])

    def _post(self, body: Any) -> None:
        url = f"{self._solr.url}/{self._name}/update?commit=true"
        answer = _pool.request("POST", url, body=json.dumps(body), headers={"content-type": "application/json"})
        assert answer.status == 200, answer.data


def check_differences(
    folder: Path, destination: Destination, store: Store, names: Sequence[str] = ("title", "price", "rank")
) -> None:
    """Seed a hundred differences of each kind; find, repair, and look again.

    Args:
        names: of a field of text, one of decimal numbers, and one of integers.
    """
    title, price, rank = names

    def build(world: PlanWorld) -> Plan:
        plan = Plan("catalogue", version=1)
        plan.source("docs", Memory(world.documents, max_deleted=1.0)).destination("out", destination, backoff=0)
        return plan

    def look(**options: Any) -> Verification:
        return verify(world.plan, state=world.state, **options)

    world = PlanWorld(folder, build)
    world.put(*IDS, **{title: "Henry", price: 1.250, rank: 3})
    assert world.run().exit == 0
    store.save()
    world.put(*OLDER, text="newer", **{title: "Henry", price: 1e20, rank: 4})
    world.drop(*DELETED)
    assert world.run().exit == 0
    assert look().exit == 0
    store.change(CHANGED)
    store.put_back([*OLDER, *DELETED])
    store.lose(LOST)
    if adds := hasattr(store, "add"):
        store.add(UNTOUCHED)
    found = look(repair=True, delete_extra=True)
    [target] = found.targets
    expected = {("changed", id) for id in (*CHANGED, *OLDER)} | {("missing", id) for id in LOST}
    expected |= {("extra", id) for id in DELETED}
    expected |= {("extra", ADDED + id) for id in UNTOUCHED if adds}
    assert Counter((each.kind, each.document) for each in target.differences) == Counter(expected)
    assert (found.repaired, found.unrepairable) == (len(expected), [])
    done = world.run()
    assert (done.exit, done.delivered, done.deleted) == (0, 300, len(expected) - 300)
    assert look().exit == 0
    assert target.counts is not None
    assert target.counts.expected == 400
    store.put_back(IDS)  # all of the target, as it was
    [target] = look(repair=True, delete_extra=True).targets
    expected = {("changed", id) for id in OLDER} | {("extra", id) for id in DELETED}
    assert Counter((each.kind, each.document) for each in target.differences) == Counter(expected)
    done = world.run(checked=False)
    assert (done.delivered, done.deleted) == (100, 100)
    assert look().exit == 0


@pytest.mark.server
def test_postgresql(tmp_path: Path, database: Database) -> None:
    """Hand edits of text, JSON and copied columns; numbers that PostgreSQL prints in another way are none."""
    columns = {"title": "title", "price": "price", "rank": "rank"}
    destination = Sql(database.url, columns=columns)
    destination.check()
    database.query("ALTER TABLE documents ALTER COLUMN price TYPE numeric(30, 4) USING price::numeric")
    database.query("ALTER TABLE documents ALTER COLUMN rank TYPE integer USING rank::integer")
    check_differences(tmp_path, destination, InPostgres(database))


SIMILAR = [
    *("a-b", "ab", "a b", "A-B", "Ab", "aB", "AB", "a_b", "a.b", "co-op", "coop", "CO-OP", "coöp", "10", "9", "3"),
    *("résumé", "re\u0301sume\u0301", "resume", "Resume", "RÉSUMÉ", "straße", "strasse", "STRASSE", "ñ", "n\u0303"),
    *("n", "N", "\u0663", "\ufb01", "fi", "\u0130", "i", "I", "\u0131", "\u03a9", "\u2126", "z", "Z", "ä"),
]
"""Ids that natural languages sort in another order than their bytes, or take for equal."""


def check_similar_ids(folder: Path, destination: Destination, store: Store) -> None:
    """Each of the ids is a document of its own; what is missing, changed and too much is found, and nothing else."""
    ids = [f"{shelf}/{id}" for shelf in ("a", "A", "-", "é") for id in SIMILAR]
    world = PlanWorld(folder, partial(build_copies, destination=destination))
    look = partial(verify, world.plan, state=world.state)
    world.put(*ids, title="Henry", price=1.25, rank=3)
    assert world.run().exit == 0
    parts: list[dict[str, Any]] = [{}, {"sample": 50}, {"since": 1}]
    for options in parts:
        clean = look(**options)
        assert clean.exit == 0, clean.targets
        assert clean.targets[0].counts is not None
        assert clean.targets[0].counts.expected == options.get("sample", len(ids))
    store.save()
    world.drop(*ids[2::3])
    assert world.run().exit == 0
    store.change(ids[::3])
    store.lose(ids[1::3])
    store.put_back(ids[2::3])
    expected = {("changed", id) for id in ids[::3]} | {("missing", id) for id in ids[1::3]}
    expected |= {("extra", id) for id in ids[2::3]}
    [target] = look(repair=True, delete_extra=True).targets
    assert Counter((each.kind, each.document) for each in target.differences) == Counter(expected)
    done = world.run(checked=False)
    assert (done.delivered, done.deleted) == (len(ids[::3]) + len(ids[1::3]), len(ids[2::3]))
    assert look().exit == 0


@pytest.fixture
def icu_database(server: Callable[[str], Any]) -> Iterator[Database]:
    made = Database(server("postgres-icu"))
    yield made
    made.drop()


@pytest.mark.rule("verify.collations")
@pytest.mark.server
@pytest.mark.parametrize("place", ["database", "column"])
def test_ids_that_postgresql_sorts_as_a_language_does(tmp_path: Path, icu_database: Database, place: str) -> None:
    """In a database with the collation of a language, and in a table whose ids somebody has given one."""
    order = "SELECT string_agg(id, '' ORDER BY id) FROM (VALUES ('B'), ('a')) v (id)"
    with icu_database.of_language("en") if place == "database" else nullcontext(icu_database) as own:
        destination = Sql(own.url, columns={"title": "title", "price": "price", "rank": "rank"})
        destination.check()
        own.query("ALTER TABLE documents ALTER COLUMN rank TYPE integer USING rank::integer")
        if place == "column":
            for table in ("documents", "documents_tombstones"):
                own.query(f'ALTER TABLE {table} ALTER COLUMN id TYPE text COLLATE "en-x-icu"')
        assert own.query(order) == [("aB" if place == "database" else "Ba",)]
        check_similar_ids(tmp_path, destination, InPostgres(own))


@pytest.mark.rule("verify.collations")
@pytest.mark.server
def test_a_table_of_postgresql_that_takes_ids_for_equal_is_refused(icu_database: Database) -> None:
    """By an index that ignores case one of two documents would replace the other."""
    destination = Sql(icu_database.url)
    destination.check()
    icu_database.query("CREATE COLLATION no_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    for table in ("documents", "documents_tombstones"):
        icu_database.query(f"ALTER TABLE {table} ALTER COLUMN id TYPE text COLLATE no_case")
        with pytest.raises(Misconfigured, match=f"{table}.id has the collation no_case, for which some different ids"):
            destination.check()
        icu_database.query(f'ALTER TABLE {table} ALTER COLUMN id TYPE text COLLATE "C"')
        destination.check()


@pytest.mark.rule("verify.collations")
@pytest.mark.server
def test_ids_in_a_database_of_mysql_that_ignores_case(tmp_path: Path, mysql_database: MySqlDatabase) -> None:
    """Ids are compared byte by byte all the same."""
    mysql_database.query(f"ALTER DATABASE {mysql_database.name} CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
    columns = {"title": "title", "price": "price", "rank": "rank"}
    destination = Sql(mysql_database.url, columns=columns)
    destination.check()
    mysql_database.query("ALTER TABLE documents MODIFY `rank` INT")
    check_similar_ids(tmp_path, destination, InMySql(mysql_database))


@pytest.mark.server
def test_mysql(tmp_path: Path, mysql_database: MySqlDatabase) -> None:
    """Hand edits of text, JSON and copied columns; numbers that a type prints in another way are none."""
    columns = {"title": "title", "price": "price", "rank": "rank"}
    destination = Sql(mysql_database.url, columns=columns)
    destination.check()
    mysql_database.query("ALTER TABLE documents MODIFY price DECIMAL(30, 4), MODIFY `rank` INT")
    check_differences(tmp_path, destination, InMySql(mysql_database))


@pytest.mark.server
def test_redis(tmp_path: Path, in_redis: tuple[Redis, InRedis]) -> None:
    """What is read back is compared with what was written."""
    check_differences(tmp_path, *in_redis)


KINDS = {
    "numeric(10,2)": (1.256, "1.25"),
    "numeric": ("1.2500", "1.2501"),
    "real": (3.14159274, "3.14"),
    "double precision": (0.1 + 0.2, "0.3"),
    "money": (2.5, "2.51"),
    "smallint": (7, "8"),
    "boolean": (True, "false"),
    "date": ("2024-02-29", "2024-03-01"),
    "time(0)": ("10:11:12.6", "10:11:12"),
    "timestamp(0)": ("2024-02-29T10:11:12.6", "2024-02-29 10:11:12"),
    "timestamptz": ("2024-02-29T10:11:12+02:00", "2024-02-29T10:11:12Z"),
    "interval": ("90 minutes", "91 minutes"),
    "char(8)": ("abc", "abd"),
    "varchar(4)": ("abc    ", "abd"),
    "uuid": ("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12"),
    "inet": ("10.0.0.1/32", "10.0.0.2"),
    "jsonb": ({"b": 1.0, "a": [1, 2]}, '{"a": [1, 2], "b": 2}'),
    "bytea": ("abc", "abd"),
    "text": ("1.0", "1"),
}
"""Type of a column -> (value of the field, what somebody writes over it)."""


@pytest.mark.rule("verify.types")
@pytest.mark.server
def test_columns_of_every_kind_in_postgresql(tmp_path: Path, database: Database) -> None:
    """What a type rounds, cuts, pads or prints in another way is no change; each edit by hand is one."""
    columns = {f"c{number}": f"it's {kind}" for number, kind in enumerate(KINDS)}
    destination = Sql(database.url, columns=columns)
    destination.check()
    for column, kind in zip(columns, KINDS, strict=True):
        database.query(f"ALTER TABLE documents ALTER COLUMN {column} TYPE {kind} USING NULL")

    def build(world: PlanWorld) -> Plan:
        plan = Plan("kinds", version=1)
        plan.source("docs", Memory(world.documents)).destination("out", destination, backoff=0)
        return plan

    world = PlanWorld(tmp_path, build)
    fields = dict(zip(columns.values(), (written for written, _ in KINDS.values()), strict=True))
    world.put("empty")
    world.put(*columns, **fields)
    done = world.run()
    assert (done.exit, done.delivered) == (0, len(KINDS) + 1), done.messages
    assert verify(world.plan, state=world.state).exit == 0
    for column, (_, edited) in zip(columns, KINDS.values(), strict=True):
        database.query(f"UPDATE documents SET {column} = %s WHERE id = %s", edited, column)
    database.query("UPDATE documents SET fields = '{\"it''s smallint\": \"seven\"}' WHERE id = 'empty'")
    [target] = verify(world.plan, state=world.state, repair=True).targets
    assert {(each.kind, each.document) for each in target.differences} == {
        ("changed", id) for id in (*columns, "empty")
    }
    assert world.run().exit == 0
    assert verify(world.plan, state=world.state).exit == 0


def build_copies(world: PlanWorld, destination: Destination) -> Plan:
    plan = Plan("copies", version=1)
    plan.source("docs", Memory(world.documents, max_deleted=1.0)).destination("out", destination, backoff=0)
    return plan


def check_repair(world: PlanWorld, lost: int) -> None:
    """A run says what was done to its target and ends with 3, until a repair and a verification; then nothing of it is
    left."""
    found = world.run(checked=False)
    assert found.exit == 3
    assert any("verify PLAN --repair" in text for text in found.messages), found.messages
    look = partial(verify, world.plan, state=world.state)
    assert look(repair=True).repaired == lost
    assert world.run(checked=False).delivered == lost
    assert look().exit == 0
    again = world.run()
    assert (again.exit, again.messages, again.delivered) == (0, [], 0)


def check_older_copies(folder: Path, destination: Destination, store: Store, title: str = "title") -> None:
    """A run says that a state, and that a target, is an older copy; adoption and repair end both right.

    Args:
        title: name of a field of text.
    """
    world = PlanWorld(folder, partial(build_copies, destination=destination))
    world.put(*IDS[:40], **{title: "Henry"})
    assert world.run().exit == 0
    shutil.copytree(world.state, folder / "copy")
    world.put(*IDS[:10], text="edited", **{title: "Henry"})
    assert world.run().exit == 0
    shutil.rmtree(world.state)
    (folder / "copy").rename(world.state)
    world.put(IDS[20], text="edited after", **{title: "Henry"})
    found = world.run(checked=False)
    assert found.exit == 3
    assert any("ferryman adopt PLAN" in text for text in found.messages), found.messages
    adopt(world.plan, state=world.state)
    assert world.run().exit == 0
    assert verify(world.plan, state=world.state).exit == 0
    store.save()
    world.put(*IDS[40:50], **{title: "newer"})
    assert world.run().exit == 0
    store.lose(IDS[40:50])
    lost = world.run(checked=False)
    assert lost.exit == 3
    assert any("older copy" in text and "verify PLAN --repair" in text for text in lost.messages), lost.messages
    assert verify(world.plan, state=world.state, repair=True).exit == 3
    assert world.run(checked=False).delivered == 10
    assert verify(world.plan, state=world.state).exit == 0
    assert world.run().exit == 0


@pytest.mark.server
def test_older_copies_with_postgresql(tmp_path: Path, database: Database) -> None:
    """Its table of writers tells."""
    check_older_copies(tmp_path, Sql(database.url), InPostgres(database))


@pytest.mark.server
def test_older_copies_with_mysql(tmp_path: Path, mysql_database: MySqlDatabase) -> None:
    """Its table of writers tells."""
    check_older_copies(tmp_path, Sql(mysql_database.url), InMySql(mysql_database))


@pytest.mark.server
def test_older_copies_with_redis(tmp_path: Path, in_redis: tuple[Redis, InRedis]) -> None:
    """The highest sequence of the state tells."""
    check_older_copies(tmp_path, *in_redis)


@pytest.mark.server
def test_older_copies_with_opensearch(tmp_path: Path, index: SearchIndex) -> None:
    """The hashes of the newest documents tell."""
    check_older_copies(tmp_path, OpenSearch(index.url, index.name), InOpenSearch(index))


def recreate(index: SearchIndex) -> None:
    index.ask("DELETE")


def point_elsewhere(index: SearchIndex) -> None:
    """An index that somebody filled from an older copy takes the place of the one behind the alias."""
    there = SearchIndex(index.url, f"{index.name}-1")
    copy_index(there, f"{index.name}-2", 15)
    actions = [{"remove": {"index": there.name, "alias": index.name}}]
    actions += [{"add": {"index": f"{index.name}-2", "alias": index.name}}]
    SearchIndex(index.url, "_aliases").ask("POST", "", {"actions": actions})


def reindex(index: SearchIndex) -> None:
    """By hand, and half of it: into another index, and from there into one of the old name."""
    copy_index(index, f"{index.name}-other", 15)
    index.ask("DELETE")
    copy_index(SearchIndex(index.url, f"{index.name}-other"), index.name, 15)


def copy_index(index: SearchIndex, name: str, documents: int) -> None:
    """Write some documents of an index into another one with its mappings, as people do by ``_reindex``, which the
    server of the tests does not have."""
    other, [found] = SearchIndex(index.url, name), index.ask("GET", "/_mapping").values()
    copied = list(index.documents().items())[:documents]
    other.ask("PUT", "", found)
    InOpenSearch(other).write([({"index": {"_id": id}}, source) for id, source in copied])


@pytest.mark.rule("verify.target")
@pytest.mark.server
@pytest.mark.parametrize(("harm", "lost"), [(recreate, 20), (point_elsewhere, 5), (reindex, 5)])
def test_an_index_that_is_another_one(
    tmp_path: Path, index: SearchIndex, harm: Callable[[SearchIndex], None], lost: int
) -> None:
    """Deleted and made again, behind an alias that points elsewhere, or reindexed by hand: each run says so and ends
    with 3, until what it lacks was sent and all is there."""
    if harm is point_elsewhere:
        SearchIndex(index.url, f"{index.name}-1").ask("PUT", "", {"aliases": {index.name: {}}})
    world = PlanWorld(tmp_path, partial(build_copies, destination=OpenSearch(index.url, index.name)))
    world.put(*IDS[:20])
    assert world.run().exit == 0
    harm(index)
    check_repair(world, lost)
    assert len(index.documents()) == 20


@pytest.mark.rule("verify.target")
@pytest.mark.server
def test_a_table_of_postgresql_that_was_dropped(tmp_path: Path, database: Database) -> None:
    """Each run says so and ends with 3, until all was sent again and is there."""
    world = PlanWorld(tmp_path, partial(build_copies, destination=Sql(database.url)))
    world.put(*IDS[:20])
    assert world.run().exit == 0
    database.query("DROP TABLE documents")
    check_repair(world, lost=20)


@pytest.mark.rule("check.durability")
@pytest.mark.server
def test_settings_of_postgresql_that_lose_commits(database: Database) -> None:
    """As they are for the plan's connections; the server of the tests has both of them off."""
    careless = Sql(database.url)
    careless.check()
    assert "fsync is off" in careless.durability_risk()
    assert "synchronous_commit is off" in careless.durability_risk()
    assert "synchronous" not in Sql(f"{database.url}%20-csynchronous_commit%3Don").durability_risk()


@pytest.mark.rule("check.durability")
@pytest.mark.server
def test_settings_of_opensearch_that_lose_writes(index: SearchIndex) -> None:
    """As they are for the index."""
    destination = OpenSearch(index.url, index.name)
    destination.check()
    assert destination.durability_risk() == ""
    index.ask("PUT", "/_settings", {"index.translog.durability": "async"})
    assert "index.translog.durability is async" in destination.durability_risk()


@pytest.mark.server
def test_opensearch(tmp_path: Path, index: SearchIndex) -> None:
    """A document that was written again has another version, and perhaps another content."""
    check_differences(tmp_path, OpenSearch(index.url, index.name), InOpenSearch(index))


@pytest.mark.server
def test_older_copies_with_solr(tmp_path: Path, server: Callable[[str], Any]) -> None:
    """The hashes of the newest documents tell, by their origins."""
    solr: SolrServer = server("solr")
    name = f"older-{tmp_path.name}"
    solr.collection(name)
    check_older_copies(tmp_path, Solr(f"{solr.url}/{name}"), InSolr(solr, name), "title_s")


@pytest.mark.server
def test_a_core_that_was_made_anew_or_emptied(tmp_path: Path, server: Callable[[str], Any]) -> None:
    """It lacks what was delivered last: each run says so and ends with 3, until all is there again."""
    solr: SolrServer = server("solr")
    name = f"anew-{tmp_path.name}"
    solr.collection(name)
    store = InSolr(solr, name)
    world = PlanWorld(tmp_path, partial(build_copies, destination=Solr(f"{solr.url}/{name}")))
    world.put(*IDS[:20])
    assert world.run().exit == 0

    def make_anew() -> None:
        solr.get("/admin/cores", action="UNLOAD", core=name, deleteInstanceDir="true")
        solr.collection(name)

    for harm in (make_anew, partial(store.lose, IDS[:20])):
        harm()
        check_repair(world, lost=20)


@pytest.mark.server
def test_solr(tmp_path: Path, server: Callable[[str], Any]) -> None:
    """Ids and hashes are compared, the content is not."""
    solr: SolrServer = server("solr")
    name = f"verify-{tmp_path.name}"
    solr.collection(name)
    destination = Solr(f"{solr.url}/{name}")
    check_differences(tmp_path, destination, InSolr(solr, name), ("title_s", "price_s", "rank_l"))


@pytest.mark.server
def test_what_is_not_compared_in_solr(tmp_path: Path, server: Callable[[str], Any]) -> None:
    """An edit by hand that leaves the hash is not found, and the numbers say that no content was compared."""
    solr: SolrServer = server("solr")
    name = f"edited-{tmp_path.name}"
    solr.collection(name)
    store, world = (
        InSolr(solr, name),
        PlanWorld(tmp_path, partial(build_copies, destination=Solr(f"{solr.url}/{name}"))),
    )
    world.put(*IDS[:3], title_s="Henry")
    assert world.run().exit == 0
    store.save()
    store.edit(IDS[:1], title_s="other")
    found = verify(world.plan, state=world.state)
    assert found.exit == 0
    assert found.targets[0].counts is not None
    assert found.targets[0].counts.unknown == 3
