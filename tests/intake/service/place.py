"""A queue that is served in this process, by the in-process runner."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ferryman import Plan
from ferryman.destinations import Sql
from ferryman.document import Document
from ferryman.engine.runner.base import Runner
from ferryman.errors import BadDocument
from ferryman.intake import JobQueue
from ferryman.intake.service import Serving, serve
from ferryman.net.allowed_addresses import Reach
from ferryman.observe import Silent
from ferryman.sources import Jobs
from ferryman.state.state import State
from ferryman.testing.inprocess import InProcess


class Said(Silent):
    """An observer that keeps what was said, and stops a run that goes round in circles."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.scans = 0

    def phase(self, wave: int, name: str) -> None:
        self.scans += name == "scan"
        assert self.scans < 200, "it scans for ever"

    def message(self, text: str) -> None:
        self.lines.append(text)


ODD = "odd"
"""What begins so, the step of ``plan_into`` cannot take, and nobody anticipated it."""


def to_text(doc: Document) -> Document:
    """A plan's step: text, or the document is bad."""
    text = doc.text()
    if text.startswith(ODD):
        raise KeyError("no such field")
    if "\0" in text:
        raise BadDocument(f"{doc.id}: holds a zero byte")
    doc["words"] = len(text.split())
    return doc


def plan_into(database: Path, *, version: int = 1) -> Plan:
    """Jobs into a table, each delivery a row: who is delivered twice is seen."""
    plan = Plan("intake", version=version)
    text = plan.source("jobs", Jobs()).step("text", to_text)
    text.destination("index", Sql(f"sqlite:///{database}", table="documents", mode="append"))
    return plan


class Place:
    """A folder with a queue, files to submit, and a plan into ``index.db``."""

    def __init__(self, folder: Path, session_timeout_s: float = 10.0, url: str = "") -> None:
        self.folder = folder
        self.files = folder / "files"
        self.files.mkdir(exist_ok=True)
        self.queue = JobQueue.open(url or f"sqlite:///{folder / 'queue.db'}", session_timeout_s=session_timeout_s)
        self.plan = plan_into(folder / "index.db")
        may = Reach((str(folder),), ("127.0.0.1", "localhost"))
        self.serving = Serving(folder / "work", threads=2, once=True, reach=may)
        self.said = Said()
        self.states = "state"
        """The folder of the plan's state."""

    def put(self, name: str, content: bytes | str) -> Path:
        path = self.files / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def row(self, name: str, content: bytes | str | None = None, **columns: Any) -> dict[str, Any]:
        """A line of a manifest; the file is made."""
        path = self.put(name, f"content of {name}" if content is None else content)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return {"url": path.as_uri(), "digest": f"sha256:{digest}", "size": path.stat().st_size, **columns}

    def manifest(self, rows: list[dict[str, Any]], name: str = "manifest.csv") -> str:
        """The URL of a manifest with these lines."""
        path = self.folder / name
        if name.endswith(".csv"):
            names = list(dict.fromkeys(column for row in rows for column in row))
            with path.open("w", newline="", encoding="utf-8") as out:
                writer = csv.DictWriter(out, names, restval="")
                writer.writeheader()
                writer.writerows(rows)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        return path.as_uri()

    def submit(self, **submission: Any) -> str:
        """The id of the batch."""
        return self.queue.create_batch({"submitter": "tests", **submission}).id

    @contextlib.contextmanager
    def driving(self) -> Iterator[tuple[State, Runner]]:
        with State.take(self.root, self.plan) as state:
            state.record_plan(accept_changes=False)
            yield state, InProcess()

    @property
    def root(self) -> Path:
        return self.folder / self.states / self.plan.key

    def serve(self, stop: threading.Event | None = None, **options: Any) -> None:
        """Until nothing is left to do."""
        serving = self.serving if not options else Serving(**{**vars(self.serving), **options})
        serve(self.plan, self.queue, serving, self.driving, stop=stop, observer=self.said)

    @contextlib.contextmanager
    def served(self, **options: Any) -> Iterator[None]:
        """While it is served, in another thread."""
        stop = threading.Event()
        thread = threading.Thread(target=self.serve, args=(stop,), kwargs={"once": False, **options})
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def rows(self) -> list[tuple[str, str]]:
        """(id, text) of every delivery, sorted."""
        return rows_in(self.folder / "index.db")

    def jobs(self) -> dict[str, str]:
        """Job -> its status."""
        return {job: self.queue.load_job(job).status for job in self.queue.list_jobs()}


def rows_in(database: Path) -> list[tuple[str, str]]:
    import sqlite3

    with contextlib.closing(sqlite3.connect(database)) as connection:
        return sorted(connection.execute("SELECT id, text FROM documents").fetchall())


def until(condition: Callable[[], bool], timeout_s: float = 300.0) -> None:
    """Wait for a condition; fails when it does not come true."""
    gone = threading.Event()
    for _ in range(int(timeout_s / 0.02)):
        if condition():
            return
        gone.wait(0.02)
    raise AssertionError("it did not come true")
