"""What a reader with nothing but HTTP finds in an index of OpenSearch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import urllib3

from ferryman.destinations import DestinationContext, Guarantee, OpenSearch, Outcome
from tests.servers.opensearch import OpenSearchServer

_pool = urllib3.PoolManager()


class SearchIndex:
    """An index of a server, by its URL."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name

    def ask(self, method: str, path: str = "", body: Any = None, *, status: tuple[int, ...] = (200, 201)) -> Any:
        """The decoded answer to a request below the index."""
        headers = {"content-type": "application/json"}
        sent = None if body is None else json.dumps(body).encode()
        answer = _pool.request(method, f"{self.url}/{self.name}{path}", body=sent, headers=headers, retries=False)
        assert answer.status in status, answer.data
        return json.loads(answer.data)

    def documents(self) -> dict[str, dict[str, Any]]:
        """Id -> source, of all that is there."""
        self.ask("POST", "/_refresh")
        hits: list[dict[str, Any]] = []
        after: dict[str, Any] = {}
        while True:
            query = {"size": 5000, "sort": [{"_ferryman.sequence": "asc"}], **after}
            found = self.ask("POST", "/_search", query)["hits"]["hits"]
            hits += found
            if len(found) < 5000:
                break
            after = {"search_after": found[-1]["sort"]}
        assert len({hit["_id"] for hit in hits}) == len(hits)
        return {hit["_id"]: hit["_source"] for hit in hits}

    def hashes(self) -> list[str]:
        return [source["_ferryman"]["hash"] for source in self.documents().values()]

    def version(self, id: str) -> int:
        """The server's version of a document."""
        return int(self.ask("GET", f"/_doc/{quote(id, safe='')}")["_version"])

    def found(self, **terms: str) -> list[str]:
        """Ids of the documents that match."""
        self.ask("POST", "/_refresh")
        return [hit["_id"] for hit in self.ask("POST", "/_search", {"query": {"match": terms}})["hits"]["hits"]]


@pytest.fixture
def opensearch(server: Callable[[str], Any]) -> OpenSearchServer:
    found: OpenSearchServer = server("opensearch")
    return found


@pytest.fixture
def index(opensearch: OpenSearchServer, tmp_path: Path) -> SearchIndex:
    """This test's own; it is not there yet."""
    return SearchIndex(opensearch.url, tmp_path.name)


def opened(made: OpenSearch, guarantee: Guarantee = Guarantee.EXACTLY_ONCE) -> OpenSearch:
    """Checked and opened."""
    made.check()
    made.open(DestinationContext("tests", 1, "node", 1, guarantee))
    return made


def kinds(outcomes: list[Outcome]) -> list[str]:
    return [outcome.kind for outcome in outcomes]
