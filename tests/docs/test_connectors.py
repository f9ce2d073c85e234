"""docs/how-to/ of destinations: their commands and plans are run against real receivers and servers."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.state.state import state_root
from tests.servers.solr import VERSIONS, SolrServer
from tests.support.page import HOW_TO, QuickShell
from tests.support.plan_world import run_plan


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.mark.parametrize(
    "name",
    ["keep-files", "call-a-webhook", "call-a-slow-service", "index-an-api", "index-a-wiki", "limit-who-may-read"],
)
def test_the_page_is_true(place: Path, name: str) -> None:
    """Each command of the page is run in a shell; each line that the page shows is a line of its output."""
    with QuickShell(place, {port: str(free_port()) for port in ("9000", "9001")}) as shell:
        shell.follow(HOW_TO / f"{name}.md")


SOLR = (HOW_TO / "index-into-solr.md").read_text("utf-8")


def test_the_solr_page_is_true(
    server: Callable[[str], Any], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan indexes, its query finds, what it says of a refused document is what is said, its chain is the one that
    the destination is tested with."""
    solr: SolrServer = server("solr")
    collection = solr.collection(tmp_path.name)
    monkeypatch.chdir(place)
    monkeypatch.setenv("SOLR_PASSWORD", "not asked for")
    (place / "corpus").mkdir()
    (place / "corpus" / "henryv.txt").write_text("Henry V\nO for a muse of fire")
    (place / "corpus" / "hamlet.txt").write_text("Hamlet\nWho's there?")
    plan_code, guarded = re.findall(r"^```python\n(.*?)^```", SOLR, re.DOTALL | re.MULTILINE)
    query, refused = re.findall(r"^```text\n(.*?)^```", SOLR, re.DOTALL | re.MULTILINE)
    here = "http://localhost:8983/solr/plays"

    made: dict[str, Any] = {"__name__": "page"}
    exec(plan_code.replace(here, collection), made)
    assert run_plan(made["plan"], place / "state").exit == 0
    parameters = dict(part.split("=") for part in query.strip().partition("?")[2].split("&"))
    [shown] = re.findall(r"^```json\n(.*?)^```", SOLR, re.DOTALL | re.MULTILINE)
    give_up = time.monotonic() + 300
    while (found := solr.get(f"/{tmp_path.name}/select", **parameters)["response"]["docs"]) != json.loads(shown):
        assert time.monotonic() < give_up, found
        time.sleep(0.05)

    monkeypatch.setitem(made, "first_line", None)
    again = dict(made)
    exec(plan_code.replace(here, collection).replace('doc["title"] =', 'doc["words"] = "many" #'), again)
    (place / "corpus" / "henryv.txt").write_text("Henry V, changed")
    run_plan(again["plan"], place / "state")
    [dead] = account.deliveries(state_root(again["plan"], place / "state"), plan=again["plan"], status="failed")
    assert "  ".join(dead[name] for name in ("document", "destination", "status", "message")) == refused.strip()

    exec(guarded, made)
    assert made["guarded"].transactional
    [chain] = re.findall(r"^```xml\n(.*?)^```", SOLR, re.DOTALL | re.MULTILINE)
    assert chain.split() == VERSIONS.split()
