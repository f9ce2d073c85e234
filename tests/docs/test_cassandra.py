"""The how-to guides about Cassandra are true: their commands are run, on the real server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman.mirror.tables import DOC_HASH, STATUS, keyspace_of
from ferryman.net.cassandra import CassandraServers
from tests.mirror.test_import import JesterJ
from tests.support.page import HOW_TO, QuickShell

pytestmark = pytest.mark.server


def shell(folder: Path, url: str) -> QuickShell:
    here = {"localhost:9042": url, 'Cluster(["localhost"], port=9042)': f'Cluster(["127.0.0.1"], port={url[-5:]})'}
    return QuickShell(folder, here | {"cassandra://localhost...": f"cassandra://{url}"})


def test_mirror_the_ledger_into_cassandra(
    server: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cassandra")
    monkeypatch.setenv("QUICK_FERRYMAN_FORKS", "no")
    with shell(tmp_path, server("cassandra").url) as typed:
        typed.follow(HOW_TO / "mirror-the-ledger-into-cassandra.md")


def test_take_over_from_jesterj(server: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On what JesterJ would have left: two files indexed, one refused, one edited since, one that it never saw."""
    pytest.importorskip("cassandra")
    monkeypatch.setenv("QUICK_FERRYMAN_FORKS", "no")
    url = server("cassandra").url
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    with CassandraServers(url).connection() as connection:
        jesterj = JesterJ(connection, "documents", 4, "fileScanner")
        jesterj.step("sendToSolr")
        for name, status in (("a b.txt", "INDEXED"), ("c.txt", "INDEXED"), ("bad.txt", "ERROR_DOC"), ("new.txt", "")):
            path = corpus / name
            path.write_text(f"the text of {name}")
            os.utime(path, (time.time() - 9999, time.time() - 9999))
            if status:
                jesterj.seen(path.as_uri(), "0F" * 16)
                jesterj.status(path.as_uri(), "sendToSolr", "PROCESSING", status)
        edited = corpus / "edited.txt"
        edited.write_text("old")
        jesterj.status(edited.as_uri(), "sendToSolr", "INDEXED")
        edited.write_text("edited since")
        os.utime(edited, (time.time() + 60, time.time() + 60))
    with shell(tmp_path, url) as typed:
        typed.follow(HOW_TO / "take-over-from-jesterj.md")
    with CassandraServers(url).connection() as connection:  # another run of this test finds nothing of it
        for table in (STATUS, DOC_HASH):
            step = "sendToSolr" if table is STATUS else ""
            connection.define(f"DROP TABLE {keyspace_of('fileScanner', 'documents', 4, step)}.{table.name}")
