"""A run with metrics, spans and lineage events, beside the same run without, by CPU time.

The collector and the lineage server are a process of this one's, so that what they cost counts, too.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import data
from bench.harness import Row, Sizes, alternate, describe_memory, empty_folder, phases, print_progress, spark
from bench.table_to_null import plan
from ferryman import run

TARGET: Final = 0.01
"""Part of the CPU time of a run that all three may cost together."""

_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"

_SINK: Final = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Sink(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
print(server.server_port, flush=True)
server.serve_forever()
"""


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    rows = data.table(folder / f"rows-{sizes.documents}", sizes.documents)

    def work(url: str | None) -> None:
        watched = {} if url is None else {"metrics": str(folder / "bench.prom"), "openlineage": url}
        with phases() as watch, _environment(url):
            summary = run(plan(rows), state=empty_folder(folder / "null"), spark=spark(), observer=watch, **watched)
        assert summary.delivered == sizes.documents, summary

    with _sink() as url:
        watched, bare = alternate(sizes.rounds, lambda: work(url), lambda: work(None))
    assert f'status="delivered",version="0"}} {float(sizes.documents)}' in (folder / "bench.prom").read_text()
    more = [ours.cpu_s / other.cpu_s - 1 for ours, other in zip(watched.runs, bare.runs, strict=True)]
    print_progress(f"    CPU time more: {', '.join(f'{each:+.1%}' for each in more)}")
    cost = statistics.median(more)
    what = "table → one step → Null with metrics, spans and lineage; the same without"
    texts = (f"{watched.cpu_s:.2f} s of CPU", f"{bare.cpu_s:.2f} s of CPU", f"{cost:+.1%}", f"≤ +{TARGET:.0%}")
    yield Row(what, *texts, cost <= TARGET, f"{describe_memory(watched)}; {describe_memory(bare)}")


@contextmanager
def _environment(url: str | None) -> Iterator[None]:
    if url is not None:
        os.environ[_ENDPOINT] = url
    try:
        yield
    finally:
        os.environ.pop(_ENDPOINT, None)


@contextmanager
def _sink() -> Iterator[str]:
    """Start a server that takes everything; yield its URL."""
    with subprocess.Popen([sys.executable, "-c", _SINK], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()
