"""Documents into OpenSearch, beside the client library's own parallel bulk helper.

Both sides write equal documents, made before the clock starts, in equal chunks and with as many threads, into an index
with equal mappings and no replicas, on one server. The library gets ready actions (with external versions, like ours),
Ferryman gets deliveries whose fields are JSON, as in the outbox: so each builds its own requests.

It starts a server of the tests.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tests.servers.opensearch import OpenSearchServer

from bench import data, environment
from bench.harness import Row, Sizes, alternate, speed_row
from ferryman.destinations import Delivery, DestinationContext, Guarantee, OpenSearch

CHUNK = 1000
THREADS = 2
MOST = 200_000
TARGET = 1.5
HEAP = "4g"
"""Heap so large that no request is refused: the two sides would wait differently."""
MAPPINGS = {"properties": {"title": {"type": "text"}, "text": {"type": "text"}}}
CONTEXT = DestinationContext("bench", 1, "index", 1, Guarantee.EXACTLY_ONCE)


def deliveries(rows: Path) -> list[Delivery]:
    documents = []
    for part in sorted(rows.glob("*.parquet")):
        for row in pq.read_table(part).to_pylist():
            n = len(documents) + 1
            body, fields = row["body"].encode(), json.dumps({"title": row["title"]}, separators=(",", ":")).encode()
            documents.append(
                Delivery(row["id"], hash=f"{n:032x}", sequence=n, fields=fields, raw=body, version="0" * 32)
            )
    return documents


def action(d: Delivery, index: str) -> dict[str, Any]:
    """Return the helper's action for the same document."""
    own = {"hash": d.hash, "sequence": d.sequence, "origin": d.origin_id, "parent": None, "source": d.source,
           "version": d.version, "route": []}  # fmt: skip
    source = {**d.fields, "text": d.text(), "_ferryman": own}
    return {"_op_type": "index", "_index": index, "_id": d.id, "version": d.sequence,
            "version_type": "external_gte", "_source": source}  # fmt: skip


def write(url: str, index: str, chunks: Iterator[list[Delivery]]) -> None:
    """Write the chunks of a lane."""
    out = OpenSearch(url, index, MAPPINGS)
    out.open(CONTEXT)
    for chunk in chunks:
        bad = [outcome for outcome in out.write(chunk) if outcome.kind != "ok"]
        assert not bad, bad[0]
    out.close()


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    sys.path.append(str(environment.packages()))  # last, so that packages of .venv take precedence
    from opensearchpy import OpenSearch as Client
    from opensearchpy.helpers import parallel_bulk

    count = min(sizes.documents, MOST)
    documents = deliveries(data.table(folder / f"rows-{count}", count))
    chunks = [documents[i : i + CHUNK] for i in range(0, len(documents), CHUNK)]
    numbers = itertools.count()
    server = OpenSearchServer()
    server.heap = HEAP
    with server, Client(server.url, maxsize=THREADS) as client:

        def fresh() -> str:
            """Create an index for a run."""
            index = f"bench-{next(numbers)}"
            OpenSearch(server.url, index, MAPPINGS, settings={"number_of_replicas": 0}).check()
            return index

        def ours() -> None:
            index = fresh()
            with ThreadPoolExecutor(THREADS) as pool:
                lanes = [pool.submit(write, server.url, index, iter(chunks[lane::THREADS])) for lane in range(THREADS)]
                for lane in lanes:
                    lane.result()

        def helper() -> None:
            index = fresh()
            actions = (action(d, index) for d in documents)
            deque(parallel_bulk(client, actions, thread_count=THREADS, chunk_size=CHUNK), maxlen=0)

        took, plain = alternate(sizes.rounds, ours, helper)
    what = (
        f"documents of 500 bytes into OpenSearch, chunks of {CHUNK}, {THREADS} threads; parallel_bulk of opensearch-py"
    )
    yield speed_row(f"{count} {what}", count, took, plain, TARGET, "into OpenSearch")
