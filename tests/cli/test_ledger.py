"""``ferryman ledger export`` and ``ferryman import-jesterj``, as they are typed: what they print, and how they end."""

from __future__ import annotations

import hashlib
import json
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ferryman.cli.app import start
from ferryman.mirror.tables import keyspace_of
from ferryman.net.cassandra import CassandraServers
from ferryman.plan.load import load_plan
from tests.mirror.test_import import JesterJ
from tests.support.plan_world import run_plan

Said = Callable[..., tuple[int, str, str]]

PLAN = """\
from ferryman import PermanentError, Plan
from ferryman.destinations import Sql
from ferryman.sources import Files


def check(doc):
    if not doc.raw:
        raise PermanentError("it is empty")
    return doc


plan = Plan("{name}", version=1)
plan.source("files", Files("in")).step("check", check).destination("out", Sql("sqlite:///out.db"))
"""


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """``said("ledger", "export", …)`` -> (exit code, stdout, stderr), beside a plan of two files, one of them empty."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a")
    (tmp_path / "in" / "empty.txt").touch()
    name = "p" + hashlib.md5(str(tmp_path).encode()).hexdigest()[:8]  # keyspaces of its own
    (tmp_path / "plan.py").write_text(PLAN.format(name=name))

    def call(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = start(list(args))
        return code, *capsys.readouterr()

    return call


def run_once(folder: Path) -> None:
    run_plan(load_plan("plan.py"), folder / ".ferryman")


def export(to: str, *more: str) -> list[str]:
    return ["ledger", "export", "plan.py", "--format", "jesterj", "--to", to, *more]


def test_export_into_files(said: Said, tmp_path: Path) -> None:
    """SQLite by its name, Parquet by any other; --json says the same in numbers; nothing is written over."""
    run_once(tmp_path)
    assert said(*export("ledger.db")) == (0, "2 events and 2 hashes of documents written to ledger.db.\n", "")
    with closing(sqlite3.connect("ledger.db")) as db:
        rows = db.execute("SELECT docId, status, outputStepName FROM jj_output_step_status ORDER BY docId").fetchall()
    assert rows == [("a.txt", "INDEXED", "out"), ("empty.txt", "ERROR_DOC", "out")]

    code, out, _ = said(*export("folder", "--json"))
    assert (code, json.loads(out)) == (0, {"events": 2, "documents": 2})
    assert {row["docId"] for row in pq.read_table("folder/jj_output_step_status.parquet").to_pylist()} == {
        "a.txt",
        "empty.txt",
    }

    code, out, err = said(*export("ledger.db"))
    assert (code, out) == (2, "")
    assert "ledger.db: it is there already" in err


def test_export_says_what_cannot_be(said: Said, tmp_path: Path) -> None:
    """No state yet; a keyspace; tables that nobody knows; a server that is away ends with 4, and the way on."""
    code, _, err = said(*export("ledger.db"))
    assert code == 2
    assert "there is no state" in err
    assert not Path("ledger.db").exists()
    run_once(tmp_path)

    code, _, err = said(*export("cassandra://localhost:9042/search"))
    assert code == 2
    assert "leave the keyspace out" in err

    code, _, err = said("ledger", "export", "plan.py", "--format", "jester", "--to", "ledger.db")
    assert code == 2
    assert "Invalid value for '--format'" in err

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        code, _, err = said(*export(f"cassandra://127.0.0.1:{unused.getsockname()[1]}"))
    assert code == 4
    assert "Run it again: it continues where it stopped." in err


@pytest.mark.parametrize("place", ["/var/lib/jesterj/cassandra/data", "data", "~/jj"])
def test_import_reads_no_data_folder(said: Said, tmp_path: Path, place: str) -> None:
    """A folder of Cassandra's is refused with the way on, whether it is there or not, and no state is made."""
    (tmp_path / "data").mkdir()
    code, out, err = said("import-jesterj", "plan.py", "--from", place)
    assert (code, out) == (2, "")
    assert f"--from {place}: give the URL of a running Cassandra." in err
    assert "start Cassandra 4.1 on the copy" in err
    assert list((tmp_path / "data").iterdir()) == []
    assert not (tmp_path / ".ferryman").exists()


@pytest.mark.parametrize("option", ["--scanner", "--step"])
@pytest.mark.parametrize("pair", ["files", "=Scanner", "files="])
def test_import_wants_pairs_of_names(said: Said, option: str, pair: str) -> None:
    code, _, err = said("import-jesterj", "plan.py", "--from", "cassandra://127.0.0.1:9", option, pair)
    assert code == 2
    assert f"{option} {pair}: give OURS=JESTERJS, as in {option} files=Scanner." in err


@pytest.mark.server
def test_export_into_cassandra_and_import_from_there(said: Said, server: Callable[[str], Any], tmp_path: Path) -> None:
    """An export done twice changes nothing, and says so; an import names what was taken over, and the next command."""
    pytest.importorskip("cassandra")
    url = server("cassandra").url
    plan = load_plan("plan.py")
    with CassandraServers(url).connection() as connection:
        jesterj = JesterJ(connection, plan.name)
        jesterj.step("sendToSolr")
        jesterj.status((tmp_path / "in" / "a.txt").as_uri(), "sendToSolr", "INDEXED")
        jesterj.status((tmp_path / "in" / "gone.txt").as_uri(), "sendToSolr", "INDEXED")
        names = ["--plan-version", "4", "--scanner", "files=Scanner", "--step", "out=sendToSolr"]
        strip = ["--strip", f"{(tmp_path / 'in').as_uri()}/", "--trust"]
        code, out, err = said("import-jesterj", "plan.py", "--from", f"cassandra://{url}", *names, *strip)
        assert code == 0, err
        assert out.splitlines() == [
            "1 have ended everywhere, and are not sent again.",
            "1 are not at their source any more: the first run deletes them.",
            "1 are not in JesterJ's tables, or not any more: the first run sends them.",
            "Next: ferryman run plan.py",
        ]
        assert "JesterJ's id gone.txt is not listed by the plan" in err

        code, out, _ = said(*export(f"cassandra://{url}", "--json"))
        first = json.loads(out)
        assert (code, first["behind"]) == (0, 0)
        assert first["events"] > 0
        code, out, err = said(*export(f"cassandra://{url}"))
        assert code == 0, err
        assert out.startswith("0 events and 0 hashes of documents written to cassandra://")
        [row] = connection.rows(
            f"SELECT docid, status FROM {keyspace_of('files', plan.name, 1, 'out')}.jj_output_step_status "
            "WHERE docid = 'a.txt'"
        )
        assert (row.docid, row.status) == ("a.txt", "INDEXED")
