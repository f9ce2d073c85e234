"""``OpenSearch``: credentials, arguments, connections."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Guarantee, OpenSearch
from ferryman.destinations.opensearch import destination, documents
from ferryman.errors import Misconfigured, PermanentError
from ferryman.testing.destinations import delivery
from ferryman.testing.proxy import Proxy, ProxyFault
from tests.destinations.search_index import SearchIndex, index, kinds, opened, opensearch
from tests.servers.opensearch import OpenSearchServer
from tests.support.gate import API_KEY, PASSWORD, USER, Gate

__all__ = ["index", "opensearch"]


# --- who may, and what is shown ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "auth",
    [(USER, "${OPENSEARCH_PASSWORD}"), (USER, PASSWORD), "${OPENSEARCH_KEY}", API_KEY, "Bearer ${OPENSEARCH_KEY}"],
)
def test_password_key_and_certificate(
    gate: Gate, tmp_path: Path, index: SearchIndex, auth: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through TLS, from the environment or not; nothing shows them."""
    monkeypatch.setenv("OPENSEARCH_PASSWORD", PASSWORD)
    monkeypatch.setenv("OPENSEARCH_KEY", API_KEY)
    made = OpenSearch(gate.url, index.name, auth=auth, ca=gate.ca)
    assert kinds(opened(made).write([delivery("a", 1)])) == ["ok"]
    assert index.documents().keys() == {"a"}
    assert gate.seen
    for secret in (PASSWORD, API_KEY):
        assert secret not in f"{made!r} {made.target()}"
    if "${" in str(auth):
        assert PASSWORD.encode() not in pickle.dumps(made)
        assert API_KEY.encode() not in pickle.dumps(made)


def test_credentials_that_are_taken_away(gate: Gate, index: SearchIndex) -> None:
    """In the middle of a wave: for a person, about all, before and after."""
    writer = opened(OpenSearch(gate.url, index.name, auth=API_KEY, ca=gate.ca))
    gate.forbidden = "_bulk"
    [outcome] = writer.write([delivery("a", 1)])
    assert (outcome.kind, outcome.universal) == ("permanent", True)
    assert "403" in outcome.why
    assert "no permissions for POST" in outcome.why
    gate.lets_in = lambda _: False  # type: ignore[method-assign]
    [outcome] = writer.write([delivery("a", 1)])
    assert (outcome.kind, outcome.universal) == ("permanent", True)
    assert outcome.why.endswith("answered 401 Unauthorized (Unauthorized). Correct auth=.")
    assert API_KEY not in outcome.why


# --- connections ------------------------------------------------------------------------------------------------------


def test_what_answers_there_is_something_else(tmp_path: Path, server: Callable[[str], Any]) -> None:
    """A web server that is no search engine is named as that."""
    from tests.servers.test_servers import Small

    with Small() as small:
        (small.folder / "index").write_text("<html>")
        with pytest.raises(PermanentError, match="neither OpenSearch nor Elasticsearch") as caught:
            OpenSearch(small.url, "index").check()
        with pytest.raises(Misconfigured, match="neither OpenSearch nor Elasticsearch"):
            OpenSearch(small.url, "index").lookup("a")
    assert caught.value.universal


def test_a_server_that_hangs_is_given_up_in_time(
    index: SearchIndex, opensearch: OpenSearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the engine gives up the write; what becomes of the chunk is not known then."""
    monkeypatch.setattr(destination, "WRITE_S", 0.5)
    with Proxy("127.0.0.1", opensearch.port, delay_s=20) as proxy:
        writer = opened(OpenSearch(f"http://127.0.0.1:{proxy.port}", index.name))
        proxy.break_next(ProxyFault.DELAY_ANSWER, b"/_bulk")
        began = time.monotonic()
        with pytest.raises(ConnectionError, match=r"it was sent, but no answer within"):
            writer.write([delivery("a", 1)])
        assert time.monotonic() - began < 15
    assert kinds(opened(OpenSearch(index.url, index.name)).write([delivery("a", 1)])) == ["ok"]


@pytest.mark.rule("opensearch.once")
def test_nothing_is_sent_late(index: SearchIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was stopped within a write, and goes on when a delete may be forgotten, sends nothing more."""
    writer = opened(OpenSearch(index.url, index.name))
    rows = writer._writer.rows

    def stopped_meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(destination.time, "monotonic", lambda real=time.monotonic: real() + destination.WRITE_S)
        return rows(*args)

    writer._writer.rows = stopped_meanwhile  # type: ignore[method-assign]
    [outcome] = writer.write([delivery("a", 1)])
    assert (outcome.kind, outcome.universal) == ("transient", True)
    assert index.documents() == {}


def test_at_most_once_says_what_it_knows(
    index: SearchIndex, opensearch: OpenSearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a chunk in several requests: those before the one that was lost are known, those after it were never sent."""
    monkeypatch.setattr(documents, "REQUEST_BYTES", 1)
    with Proxy("127.0.0.1", opensearch.port) as proxy:
        writer = opened(OpenSearch(f"http://127.0.0.1:{proxy.port}", index.name), Guarantee.AT_MOST_ONCE)
        proxy.break_next(ProxyFault.SWALLOW_ANSWER, b'"doc-2"')
        outcomes = writer.write([delivery(f"doc-{i}", i) for i in range(1, 5)])
    assert kinds(outcomes) == ["ok", "unknown", "transient", "transient"]
    assert outcomes[2].universal
    assert index.documents().keys() == {"doc-1", "doc-2"}
