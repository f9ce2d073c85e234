"""docs/how-to/move-from-solr-to-opensearch.md is true: its commands are run against real servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.destinations.search_index import SearchIndex
from tests.servers.solr import SolrServer
from tests.support.page import HOW_TO, QuickShell

CURL = """\
import sys, urllib.request
options = dict(zip(sys.argv[2:-1:2], sys.argv[3:-1:2]))
name, _, value = options["-H"].partition(": ")
body = open(options["-d"][1:], "rb").read()
answer = urllib.request.urlopen(urllib.request.Request("http://" + sys.argv[-1], body, {name: value})).read()
open(options["-o"], "wb").write(answer)
"""
"""As much of curl as the page needs: the machine may have none."""

PLAN = """\
from ferryman import Plan
from ferryman.destinations import OpenSearch
from ferryman.sources import Solr

plan = Plan("move", version=1)
old = plan.source("old", Solr("{solr}", max_deleted=1.0))
old.destination("new", OpenSearch("{opensearch}", "{index}"), batch=20, backoff=0)
"""


def test_move_from_solr_to_opensearch(server: Callable[[str], Any], tmp_path: Path) -> None:
    """Each command of the page is run in a shell; each line that the page shows is a line of its output."""
    solr, opensearch = server("solr"), server("opensearch")
    solr.collection("plays")
    post(solr, "plays", {"delete": {"query": "*:*"}})
    SearchIndex(opensearch.url, "plays").ask("DELETE", status=(200, 404))
    ports = {"localhost:8983": f"localhost:{solr.port}", "localhost:9200": f"localhost:{opensearch.port}"}
    with QuickShell(tmp_path, ports) as shell:
        (tmp_path / "bin" / "curl.py").write_text(CURL)
        shell.add("curl", f'"{tmp_path}/bin/curl.py"')
        shell.follow(HOW_TO / "move-from-solr-to-opensearch.md")


def post(solr: SolrServer, collection: str, body: Any) -> None:
    request = urllib.request.Request(
        f"{solr.url}/{collection}/update?commit=true", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.status == 200


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.rule("destination.stale")
def test_a_move_that_is_killed_while_the_old_index_changes(server: Callable[[str], Any], tmp_path: Path) -> None:
    """Killed twice when some more documents have arrived, while documents come, change and go: in the end the new
    index has exactly what the old one has, and ``verify`` says so."""
    solr, opensearch = server("solr"), server("opensearch")
    index = SearchIndex(opensearch.url, tmp_path.name)
    solr.collection(tmp_path.name)
    post(solr, tmp_path.name, [{"id": f"doc-{n}", "year": n} for n in range(3_000)])
    plan = tmp_path / "move.py"
    plan.write_text(PLAN.format(solr=f"{solr.url}/{tmp_path.name}", opensearch=opensearch.url, index=tmp_path.name))
    for kill in range(2):
        process = ferryman(plan, "run", "--master", "local[1]", "--conf", "spark.ui.enabled=false")
        before = arrived(index)
        while process.poll() is None and arrived(index) < before + 100:
            time.sleep(0.02)  # a condition is asked for
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        changed = [{"id": f"doc-{n}", "year": -kill} for n in range(kill, 3_000, 500)]
        post(solr, tmp_path.name, [*changed, {"id": f"new-{kill}", "year": kill}])
        post(solr, tmp_path.name, {"delete": [f"doc-{n}" for n in range(7 + kill, 3_000, 700)]})
    assert arrived(index) >= 100
    assert ferryman(plan, "run", "--master", "local[1]", "--conf", "spark.ui.enabled=false").wait() == 0
    old = {each["id"]: each["year"] for each in solr.documents(tmp_path.name)}
    assert {id: each["year"] for id, each in index.documents().items()} == old
    assert ferryman(plan, "verify").wait() == 0


def ferryman(plan: Path, verb: str, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "ferryman.cli", verb, str(plan), *options],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def arrived(index: SearchIndex) -> int:
    if "error" in index.ask("POST", "/_refresh", status=(200, 404)):
        return 0
    return int(index.ask("GET", "/_count")["count"])
