"""What is special about ``Sql`` on PostgreSQL: types, NULs, many writers, its errors, its full-text index."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any
from unittest import mock

import psycopg
import pytest
from psycopg.errors import DeadlockDetected

from ferryman.destinations import Delivery, Outcome, Sql
from ferryman.destinations.sql.postgresql import faults, writer
from ferryman.destinations.sql.search import search
from ferryman.errors import DeliveryError, PermanentError, PlanError, TransientError, UsageError
from ferryman.testing.destinations import delete, delivery
from tests.destinations.postgres import Database, database, postgres
from tests.destinations.sql_table import CONTEXT, opened
from tests.servers.postgres import PASSWORD

__all__ = ["database", "postgres"]

OK, STALE = Outcome.ok(), Outcome.stale()
SPAWN = multiprocessing.get_context("spawn")


# --- the table --------------------------------------------------------------------------------------------------------


def test_a_row_has_all_that_a_delivery_has(database: Database) -> None:
    """Every part of a delivery has its column; route and fields are jsonb."""
    one = Delivery(
        "a.txt#2",
        hash="f" * 32,
        sequence=2**52,
        fields={"title": "Henry", "tags": [1, None], "path": "C:\\new\ttab"},
        raw="Brontë\\N\n\t\r\\.".encode(),
        version="e" * 32,
        source="files",
        parent_id="a.txt#1",
        origin_id="a.txt",
        route=("left", "up"),
    )
    sql = opened(Sql(database.url, columns={"tags": "tags"}))
    assert sql.write([one, delivery("none", 1, None), delivery("empty", 2, "")]) == [OK] * 3
    sql.close()
    names = "id, parent_id, origin_id, source, version, sequence, delivery_hash, route, text, fields, tags"
    assert database.query(f"SELECT {names} FROM documents WHERE id LIKE 'a%'") == [
        (
            *("a.txt#2", "a.txt#1", "a.txt", "files", "e" * 32, 2**52, "f" * 32, ["left", "up"]),
            *("Brontë\\N\n\t\r\\.", {"title": "Henry", "tags": [1, None], "path": "C:\\new\ttab"}, "[1,null]"),
        )
    ]
    assert database.query("SELECT id, text FROM documents WHERE sequence < 9 ORDER BY sequence") == [
        ("none", None),
        ("empty", ""),
    ]


def test_a_column_takes_what_its_type_reads(database: Database) -> None:
    """Columns are text, until somebody gives them a type; a value that it does not take harms its own document."""
    sql = Sql(database.url, columns={"year": "year", "when": "when", "flag": "flag", "doc": "doc"})
    sql.check()
    database.query(
        "ALTER TABLE documents ALTER year TYPE integer USING year::integer, "
        "ALTER flag TYPE boolean USING flag::boolean, "
        'ALTER "when" TYPE timestamptz USING "when"::timestamptz, ALTER doc TYPE jsonb USING doc::jsonb'
    )
    fields = {"year": 1599, "when": "2024-05-01T10:00:00Z", "flag": True, "doc": {"a": [1]}}
    chunk = [delivery("good", 1, fields=fields), delivery("bad", 2, fields={"year": "about 1600"})]
    chunk += [delivery("huge", 3, fields={"year": 2**40}), delivery("none", 4)]
    opened(sql)
    outcomes = sql.write(chunk)
    sql.close()
    assert [o.kind for o in outcomes] == ["ok", "permanent", "permanent", "ok"]
    assert outcomes[1].why.startswith('the database refuses it: invalid input syntax for type integer: "about 1600"')
    assert not outcomes[1].universal
    [row] = database.query("SELECT year, \"when\" AT TIME ZONE 'UTC', flag, doc FROM documents WHERE id = 'good'")
    assert (row[0], row[1].isoformat(), row[2], row[3]) == (1599, "2024-05-01T10:00:00", True, {"a": [1]})


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_nul_becomes_the_replacement_character(database: Database, mode: Any) -> None:
    """In text, fields and columns, as for bytes that are no text; backslashes that only look like one stay."""
    sql = opened(Sql(database.url, mode=mode, columns={"title": "title", "tags": "tags"}))
    fields = {"title": "a\0b", "tags": ["\0"], "deep": {"k\0": "\\u0000", "l": ["\0\\"]}}
    literal = delivery("literal", 2, r"a \u0000 in text", {"title": r"\u0000"})
    assert sql.write([delivery("a", 1, "x\0y", fields), literal]) == [OK, OK]
    sql.close()
    rows = {id: rest for id, *rest in database.query("SELECT id, text, fields, title FROM documents")}
    replaced = {"title": "a\ufffdb", "tags": ["\ufffd"], "deep": {"k\ufffd": "\\u0000", "l": ["\ufffd\\"]}}
    assert rows["a"] == ["x\ufffdy", replaced, "a\ufffdb"]
    assert rows["literal"] == [r"a \u0000 in text", {"title": r"\u0000"}, r"\u0000"]


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_an_id_with_a_nul_is_refused(database: Database, mode: Any) -> None:
    """Replaced, it could be another document's; a delete of it is refused too. The others are written."""
    sql = opened(Sql(database.url, mode=mode))
    chunk = [delivery("a\0b", 1), delivery("a\ufffdb", 2), delete("c\0", 3), delivery("d", 4)]
    outcomes = sql.write(chunk)
    sql.close()
    assert [o.kind for o in outcomes] == ["permanent", "ok", "permanent", "ok"]
    assert all("NUL" in o.why and not o.universal for o in outcomes if o.kind == "permanent")


def test_what_is_too_large_harms_only_its_document(database: Database) -> None:
    """An id beyond what an index holds, and more words than a tsvector: permanent, with PostgreSQL's words."""
    sql = opened(Sql(database.url, full_text=["text"]))
    words = " ".join(f"{i:x}" for i in range(400_000))
    noise = "".join(f"{hash(i) * 2654435761 % 2**64:x}" for i in range(1000))
    chunk = [delivery("good", 1), delivery("words", 2, words), delivery(noise, 3), delivery("fine", 4)]
    outcomes = sql.write(chunk)
    sql.close()
    assert [o.kind for o in outcomes] == ["ok", "permanent", "permanent", "ok"]
    assert "too long for tsvector" in outcomes[1].why
    assert "index row" in outcomes[2].why
    assert all("split it" in o.why for o in outcomes[1:3])


def test_control_characters_are_characters(database: Database) -> None:
    """Only NUL is none."""
    texts = [f"a{mark}b{mark}" for mark in "\x1d\x1e\x1f\x01\x7f"] + ["\x1d"]
    sql = opened(Sql(database.url, columns={"title": "title"}))
    assert sql.write([delivery(f"doc-{i}", i, t, {"title": t}) for i, t in enumerate(texts)]) == [OK] * len(texts)
    sql.close()
    rows = database.query("SELECT text, title, fields->>'title', parent_id FROM documents ORDER BY sequence")
    assert rows == [(t, t, t, None) for t in texts]


# --- writers that meet ------------------------------------------------------------------------------------------------


def write_versions(url: str, start: Any, own: int, step: int) -> None:
    """Every id in many versions, in an order of ids of its own; of ``step`` writers each has its own sequences."""
    sql = Sql(url, full_text=["text"])
    sql.open(CONTEXT)
    start.wait(60)
    for version in range(own, 60, step):
        ids = range(20) if version % 2 else reversed(range(20))
        chunk = [
            delete(f"doc-{i}", 100 * version + i) if (version + i) % 7 == 0 else delivery(f"doc-{i}", 100 * version + i)
            for i in ids
        ]
        if version % 3 == 0:
            chunk = [d for d in chunk if d.operation == "upsert"]
        assert {o.kind for o in sql.write(chunk)} <= {"ok", "stale"}
    sql.close()


@pytest.mark.rule("destination.stale")
def test_of_many_writers_the_newest_sequence_wins(database: Database) -> None:
    """Three processes write versions of the same ids at once: of each id the newest is in force, deletes included, and
    no id is both there and deleted."""
    Sql(database.url, full_text=["text"]).check()
    start = SPAWN.Barrier(3)
    arguments = [(database.url, start, own, 3) for own in range(3)]
    writers = [SPAWN.Process(target=write_versions, args=args, daemon=True) for args in arguments]
    for one in writers:
        one.start()
    for one in writers:
        one.join(120)
    assert [one.exitcode for one in writers] == [0] * 3
    last = {
        f"doc-{i}": max((100 * v + i, (v + i) % 7 == 0) for v in range(60) if (v + i) % 7 != 0 or v % 3 != 0)
        for i in range(20)
    }
    alive = {id: sequence for id, (sequence, deleted) in last.items() if not deleted}
    assert dict(database.query("SELECT id, sequence FROM documents")) == alive
    dead = {id: sequence for id, (sequence, deleted) in last.items() if deleted}
    assert dict(database.query("SELECT id, sequence FROM documents_tombstones")) == dead


def test_who_is_overtaken_begins_again(database: Database) -> None:
    """A newer version that comes in between looking and writing is not overwritten: the late one is stale."""
    sql, other = opened(Sql(database.url)), opened(Sql(database.url))
    sql.write([delivery("known", 1)])
    inner = sql._writer
    assert isinstance(inner, writer.PostgresWriter)
    inner._new_expected = False
    put, rounds = inner._put, []

    def meanwhile(*args: Any) -> int:
        rounds.append(1)
        if len(rounds) == 1:
            assert other.write([delivery("a", 9)]) == [OK]
        return put(*args)

    with mock.patch.object(inner, "_put", meanwhile):
        assert sql.write([delivery("a", 5), delivery("b", 6)]) == [STALE, OK]
    assert len(rounds) == 2
    sql.close()
    other.close()
    assert dict(database.query("SELECT id, sequence FROM documents")) == {"known": 1, "a": 9, "b": 6}


def test_a_delete_waits_for_those_who_upsert(database: Database) -> None:
    """While one is in the middle of upserting, a delete of the same new id is not done: nothing comes back after it."""
    Sql(database.url).check()
    with psycopg.connect(database.url) as upserting:
        upserting.execute("SELECT pg_advisory_xact_lock_shared(%s, 'documents'::regclass::oid::int)", [writer.LOCKS])
        deleting = opened(Sql(database.url))
        inner = deleting._writer
        assert isinstance(inner, writer.PostgresWriter)
        inner._connection.execute("SET lock_timeout = '50ms'")
        with pytest.raises(TransientError, match="lock") as caught:
            deleting.write([delete("a", 2)])
        assert caught.value.universal
        others = opened(Sql(database.url))
        assert others.write([delivery("b", 1)]) == [OK]
        others.close()
    assert deleting.write([delete("a", 2)]) == [OK]
    deleting.close()


def test_deadlocks_are_begun_again(database: Database) -> None:
    """A transaction that the server gives up for another's sake is repeated, a few times; then it is tried later."""
    sql = opened(Sql(database.url))
    inner = sql._writer
    assert isinstance(inner, writer.PostgresWriter)
    real, times = inner._write, []

    def unlucky(chunk: list[Delivery]) -> list[Outcome]:
        times.append(1)
        if len(times) < writer.TRIES:
            raise DeadlockDetected("deadlock detected")
        return real(chunk)

    with mock.patch.object(inner, "_write", unlucky):
        assert sql.write([delivery("a", 1)]) == [OK]
    with mock.patch.object(inner, "_write", side_effect=DeadlockDetected("deadlock detected")) as always:
        with pytest.raises(TransientError, match="other writers") as caught:
            sql.write([delivery("b", 2)])
        assert caught.value.universal
        assert always.call_count == writer.TRIES
    sql.close()


def check_together(url: str, start: Any) -> None:
    sql = Sql(url, columns={"title": "title"}, full_text=["text", "title"])
    start.wait(60)
    sql.check()


def test_several_drivers_may_make_the_tables_at_once(database: Database) -> None:
    """``check`` of four processes at the same moment makes one table with one index."""
    start = SPAWN.Barrier(4)
    drivers = [SPAWN.Process(target=check_together, args=(database.url, start), daemon=True) for _ in range(4)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(60)
    assert [driver.exitcode for driver in drivers] == [0] * 4


def test_a_commit_waits_for_the_disk(database: Database) -> None:
    """Also where the server's default is not to: what was confirmed survives a power cut."""
    assert database.query("SHOW synchronous_commit") == [("off",)]
    sql = opened(Sql(database.url))
    inner = sql._writer
    assert isinstance(inner, writer.PostgresWriter)
    assert inner._connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    sql.close()


# --- its errors -------------------------------------------------------------------------------------------------------


def fault(call: Callable[[], object]) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        call()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert PASSWORD not in f"{caught.value} {caught.value!r}"
    return caught.value


@pytest.mark.parametrize("state", sorted(faults.FAULTS))
def test_errors_say_what_to_do(database: Database, state: str) -> None:
    """Every SQLSTATE that we know, raised by the server itself: where, what, and what happens next."""
    kind, remedy = faults.FAULTS[state]
    with psycopg.connect(database.url) as connection, pytest.raises(psycopg.Error) as caught:
        connection.execute(f"DO $$ BEGIN RAISE EXCEPTION 'it failed' USING ERRCODE = '{state:0<5}'; END $$")
    said = faults.explain(caught.value, "here")
    assert type(said) is kind
    assert str(said) == f"here: it failed: {remedy}."


def test_other_errors_are_left_alone() -> None:
    """What is not the database's is not explained away."""
    assert faults.explain(KeyError("x"), "here") is None


def test_a_server_that_is_down_and_one_that_refuses(database: Database) -> None:
    """Nobody there: transient. Wrong password, no such database or user: permanent. All universal, without secrets."""
    down = fault(Sql(database.url_at(database.server.another_port())).check)
    assert isinstance(down, TransientError)
    assert "refused" in str(down)
    for url in (
        database.url.replace(PASSWORD, f"{PASSWORD}-not"),
        database.server.url_of("nowhere"),
        database.server.url_of("postgres", user="nobody"),
        database.url.replace(f":{PASSWORD}", ""),
    ):
        for call in (Sql(url).check, lambda url=url: Sql(url).open(CONTEXT)):  # type: ignore[misc]
            refused = fault(call)
            assert isinstance(refused, PermanentError), url
            assert "then run again" in str(refused)
            assert refused.universal
    assert down.universal


def test_a_user_without_rights_is_told(database: Database) -> None:
    """Permanent and universal: a person must grant them."""
    Sql(database.url).check()
    database.query(f"DROP ROLE IF EXISTS {database.name}")
    database.query(f"CREATE ROLE {database.name} LOGIN PASSWORD 'their-own'")
    database.query(f"GRANT USAGE ON SCHEMA {database.name} TO {database.name}")
    url = database.url.replace(f"postgres:{PASSWORD}", f"{database.name}:their-own")
    sql = Sql(url)
    sql.open(CONTEXT)
    refused = fault(lambda: sql.write([delivery("a", 1)]))
    sql.close()
    assert isinstance(refused, PermanentError)
    assert refused.universal
    assert "permission denied" in str(refused)
    assert "grant this user the right" in str(refused)


def test_a_table_that_vanishes_is_made_again(database: Database) -> None:
    """A table dropped in use is the database's trouble; the next wave's check makes it again."""
    sql = opened(Sql(database.url))
    database.query("DROP TABLE documents")
    gone = fault(lambda: sql.write([delivery("a", 1)]))
    assert isinstance(gone, TransientError)
    assert gone.universal
    sql.check()
    assert sql.write([delivery("a", 1)]) == [OK]
    sql.close()


def test_foreign_tables_are_refused(database: Database) -> None:
    """Without our columns, or of the other mode: named, with what to do; not touched."""
    database.query("CREATE TABLE documents (id text PRIMARY KEY, text text)")
    error = fault(Sql(database.url).check)
    assert "has no column parent_id" in str(error)
    assert "ADD COLUMN sequence BIGINT" in str(error)
    Sql(database.url, table="other").check()
    assert isinstance(fault(Sql(database.url, table="other", mode="append").check), PermanentError)


def test_a_lost_connection_is_made_anew(database: Database) -> None:
    """The write in which it is lost is the server's trouble; the next one goes on with a new one."""
    sql = opened(Sql(database.url))
    inner = sql._writer
    assert isinstance(inner, writer.PostgresWriter)
    database.query("SELECT pg_terminate_backend(%s)", inner._connection.info.backend_pid)
    lost = fault(lambda: sql.write([delivery("a", 1)]))
    assert isinstance(lost, TransientError)
    assert lost.universal
    assert sql.write([delivery("a", 1)]) == [OK]
    sql.close()
    sql.close()


# --- arguments --------------------------------------------------------------------------------------------------------


def test_the_target_is_the_place_alone() -> None:
    """No user, no password, no options; many may write at once."""
    sql = Sql("postgresql+psycopg://me:hidden@db.example.org:5433/shop?sslmode=require&sslpassword=hidden", table="t")
    assert sql.target() == "postgresql://db.example.org:5433/shop#t"
    assert Sql("postgresql://me@/shop?host=/run/postgresql").target() == "postgresql:///run/postgresql/shop#documents"
    assert not sql.single_writer
    assert "hidden" not in repr(sql)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Sql("postgresql+asyncpg://me:hidden@host/db"), r"write postgresql://"),
        (lambda: Sql("postgresql://me:hidden@host/db", table="t" * 60), "too long"),
        (lambda: Sql("postgresql://me:hidden@host/db", columns={"fts": "f"}), "'fts' is the name of one of"),
        (lambda: Sql("postgres://me:hidden@host/db"), "not supported"),
    ],
)
def test_wrong_arguments_are_refused_when_the_plan_is_built(make: Callable[[], Sql], says: str) -> None:
    """The error says which argument, and what to write instead, and no password."""
    with pytest.raises(PlanError, match=says) as caught:
        make()
    assert "hidden" not in str(caught.value)


def test_a_missing_driver_is_named() -> None:
    """With what to install."""
    with mock.patch("ferryman.databases.find_spec", return_value=None), pytest.raises(PlanError) as caught:
        Sql("postgresql://host/db")
    assert "pip install 'ferryman[postgres]'" in str(caught.value)


# --- full text --------------------------------------------------------------------------------------------------------


@pytest.fixture
def index(database: Database) -> str:
    sql = opened(Sql(database.url, columns={"title": "title"}, full_text=["title", "text"]))
    sql.write(
        [
            delivery("hamlet", 1, "To be, or not to be: that is the question", {"title": "Hamlet, Prince of Denmark"}),
            delivery("lear", 2, "Blow, winds, and crack your cheeks! rage! blow!", {"title": "King Lear"}),
            delivery(
                "errors", 3, 'The King, the king\'s to blame. C++ and C# and a "quoted" word', {"title": "Errors"}
            ),
            delivery("jane", 4, "by Charlotte Brontë, see /books/jane_eyre.txt or http://example.org/jane?page=2"),
            delivery("много", 5, "ПРИВЕТ Straße Tiếng Việt"),
        ]
    )
    sql.close()
    return database.url


def ids(index: str, text: str) -> list[str]:
    return sorted(hit.id for hit in search(index, text))


def test_a_hit_has_id_title_snippet_and_rank(index: str) -> None:
    """The snippet shows where the word stands; ranks rise from the best hit on."""
    hit = search(index, "question", mark=("[", "]"))[0]
    assert (hit.id, hit.title) == ("hamlet", "Hamlet, Prince of Denmark")
    assert "that is the [question]" in hit.snippet
    hits = search(index, "king")
    assert sorted(hit.id for hit in hits) == ["errors", "lear"]
    assert hits[0].rank <= hits[1].rank
    assert search(index, "bronte")[0].title is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("LEAR rage", ["lear"]),
        ("lear question", []),
        ("bronte", ["jane"]),
        ("Brontë", ["jane"]),
        ('"not to be"', ["hamlet"]),
        ('"be not"', []),
        ("quest*", ["hamlet"]),
        ('"that is the ques"*', ["hamlet"]),
        ('"that is', ["hamlet"]),
        ("king OR question", []),
        ("c++", ["errors"]),
        ("eyre", ["jane"]),
        ("jane_eyre.txt", ["jane"]),
        ("example page", ["jane"]),
        ("привет", ["много"]),
        ("tieng viet", ["много"]),
        ("bront*", ["jane"]),
    ],
)
def test_words_are_found(index: str, text: str, found: list[str]) -> None:
    """All words, in any column and order, without case and accents; quotes and stars as on SQLite."""
    assert ids(index, text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        '"',
        '""',
        "*",
        "***",
        "c++ (",
        "a:b",
        "NEAR(",
        "AND",
        "title:",
        "-x",
        "^",
        "'",
        "\0",
        "it's",
        ")(",
        "%s",
        "\\",
        "a\\*",
        "'a'*",
        "a & b | !c",
        ":*",
        "folded_0",
        "a\0b",
        "''*",
    ],
)
def test_no_text_is_an_error(index: str, text: str) -> None:
    """Whatever is typed is words to look for, never a syntax error."""
    search(index, text)


def test_the_index_follows_whoever_writes(database: Database) -> None:
    """An index that is asked for later has all rows; a row that is changed by hand too; other columns are refused."""
    sql = opened(Sql(database.url, columns={"title": "title"}))
    sql.write([delivery(f"doc-{i}", i, f"word{i}") for i in range(1, 9)])
    sql.close()
    with pytest.raises(UsageError, match="no full-text index"):
        search(database.url, "word3")
    Sql(database.url, columns={"title": "title"}, full_text=["text"]).check()
    assert ids(database.url, "word3") == ["doc-3"]
    database.query("UPDATE documents SET text = 'by hand' WHERE id = 'doc-3'")
    assert ids(database.url, "hand") == ["doc-3"]
    other = Sql(database.url, columns={"title": "title"}, full_text=["title", "text"])
    with pytest.raises(PermanentError, match=r"has the columns text, the plan says title, text.*DROP COLUMN fts"):
        other.check()
    database.query("ALTER TABLE documents DROP COLUMN fts")
    other.check()
    assert ids(database.url, "word5") == ["doc-5"]
    with psycopg.connect(database.url) as connection:
        connection.execute("SET enable_seqscan = off")
        plan = connection.execute("EXPLAIN SELECT 1 FROM documents WHERE fts @@ 'word5'::tsquery").fetchall()
    assert "documents_fts" in json.dumps(plan)


def test_what_cannot_be_searched_is_named(database: Database) -> None:
    """No server, a wrong password: for a person, without secrets."""
    for url in (database.url_at(database.server.another_port()), database.url.replace(PASSWORD, "secret-and-wrong")):
        with pytest.raises(UsageError) as caught:
            search(url, "x")
        assert PASSWORD not in str(caught.value)
        assert "secret-and-wrong" not in str(caught.value)
