"""Qdrant: its storage engine in a process of its own, behind the part of its REST API that the client uses.

No package has Qdrant's server. ``qdrant-edge-py`` is the shard of that server (write-ahead log, segments, HNSW,
conditional updates, filters) as a library. Here it stands behind HTTP, so that clients, connections, kills and restarts
are real; what is ours, and so proves nothing of Qdrant's, is the reading of requests below: names of collections,
aliases, the metadata of collections, and the API key.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tests.servers.cache import Missing
from tests.servers.server import Server

VERSION: Final = "1.19.0"
"""Version that the server reports: conditional updates need 1.16."""

_MARKS: Final = {True: "\ue000true", False: "\ue000false"}


class Qdrant(Server):
    """Keeps what it confirmed when it is killed."""

    name = "qdrant"
    usual_port = 6333
    api_key = ""

    @classmethod
    def install(cls) -> Path:
        if find_spec("qdrant_edge") is None:
            raise Missing("qdrant-edge-py is not installed: make setup")
        return Path(sys.prefix)

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "tests.servers.qdrant", "--port", str(self.port), "--data", str(self.folder)]
        return [*command, "--api-key", self.api_key] if self.api_key else command

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(Path(__file__).parents[2])}

    def ready(self) -> bool:
        return self.answers("/healthz")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class ProtectedQdrant(Qdrant):
    """Asks for an API key."""

    name = "qdrant-protected"
    usual_port = 0
    api_key = "the-key-of-tests"


class Refused(Exception):
    """A request that the server does not take."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Engine:
    """Collections, one shard each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "collections"
        self._folder.mkdir(exist_ok=True)
        self._settings = folder / "settings.json"
        self._lock = threading.Lock()
        self._shards: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}
        if self._settings.exists():
            self.settings = json.loads(self._settings.read_text())
        import qdrant_edge

        self.edge = qdrant_edge
        for name in self.settings:
            self._shards[name] = qdrant_edge.EdgeShard.load(str(self._path(name)))

    def _path(self, name: str) -> Path:
        return self._folder / name.encode().hex()

    def _save(self) -> None:
        new = self._settings.with_suffix(".new")
        new.write_text(json.dumps(self.settings))
        new.rename(self._settings)

    def shard(self, name: str) -> Any:
        if name not in self._shards:
            raise Refused(404, f"Not found: Collection `{name}` doesn't exist!")
        return self._shards[name]

    def create(self, name: str, body: dict[str, Any]) -> bool:
        edge = self.edge
        with self._lock:
            if name in self._shards:
                raise Refused(409, f"Wrong input: Collection `{name}` already exists!")
            vectors = {
                field: edge.EdgeVectorParams(size=each["size"], distance=getattr(edge.Distance, each["distance"]))
                for field, each in body.get("vectors", {}).items()
            }
            self._path(name).mkdir()
            self._shards[name] = edge.EdgeShard.create(str(self._path(name)), edge.EdgeConfig(vectors=vectors))
            self.settings[name] = {**body, "payload_schema": {}}
            self._save()
        return True

    def drop(self, name: str) -> bool:
        with self._lock:
            self.shard(name).close()
            del self._shards[name], self.settings[name]
            self._path(name).rename(self._folder / f"dropped-{len(list(self._folder.iterdir()))}")
            self._save()
        return True

    def amend(self, name: str, body: dict[str, Any]) -> bool:
        with self._lock:
            self.shard(name)
            mine = self.settings[name]
            mine["metadata"] = {**(mine.get("metadata") or {}), **(body.get("metadata") or {})}
            self._save()
        return True

    def describe(self, name: str) -> dict[str, Any]:
        info = self.shard(name).info()
        body = {key: value for key, value in self.settings[name].items() if key != "payload_schema"}
        metadata = body.pop("metadata", None)
        hnsw = {"m": 16, "ef_construct": 100, "full_scan_threshold": 10_000}
        optimizer = {"deleted_threshold": 0.2, "vacuum_min_vector_number": 1000, "default_segment_number": 0}
        return {
            "status": "green",
            "optimizer_status": "ok",
            "points_count": info.points_count,
            "segments_count": info.segments_count,
            "config": {
                "params": body,
                "hnsw_config": hnsw,
                "optimizer_config": {**optimizer, "flush_interval_sec": 5},
                "metadata": metadata,
            },
            "payload_schema": self.settings[name]["payload_schema"],
        }

    def index(self, name: str, body: dict[str, Any]) -> None:
        edge, schema = self.edge, body["field_schema"]
        kind = schema if isinstance(schema, str) else schema["type"]
        kinds = edge.PayloadSchemaType
        types = {"integer": kinds.Integer, "keyword": kinds.Keyword, "bool": kinds.Bool, "float": kinds.Float}
        with self._lock:
            self.shard(name).update(edge.UpdateOperation.create_field_index(body["field_name"], types[kind]))
            self.settings[name]["payload_schema"][body["field_name"]] = {"data_type": kind, "points": 0}
            self._save()

    def batch(self, name: str, operations: list[dict[str, Any]]) -> None:
        """Apply operations one after the other; a refused one ends the request."""
        for operation in operations:
            [(kind, body)] = operation.items()
            self.update(name, kind, body)

    def update(self, name: str, kind: str, body: dict[str, Any]) -> None:
        edge, shard = self.edge, self.shard(name)
        if kind == "upsert":
            points = [edge.Point(p["id"], p.get("vector") or {}, _marked(p["payload"])) for p in body["points"]]
            condition = self.filter(body.get("update_filter"))
            done = edge.UpdateOperation.upsert_points(points, condition=condition)
        elif kind == "delete" and "filter" in body:
            done = edge.UpdateOperation.delete_points_by_filter(self.filter(body["filter"]))
        elif kind == "delete":
            done = edge.UpdateOperation.delete_points(body["points"])
        else:
            raise Refused(400, f"Format error in JSON body: {kind} is unknown here")
        try:
            with self._lock:
                shard.update(done)
        except Exception as e:
            raise Refused(400, f"Wrong input: {e}") from e

    def filter(self, body: dict[str, Any] | None) -> Any:
        if body is None:
            return None
        parts = {}
        for kind in ("must", "should", "must_not"):
            conditions = body.get(kind)
            if conditions is not None:
                some = conditions if isinstance(conditions, list) else [conditions]
                parts[kind] = [self.condition(each) for each in some]
        return self.edge.Filter(**parts)

    def condition(self, body: dict[str, Any]) -> Any:
        edge = self.edge
        if "has_id" in body:
            return edge.HasIdCondition(body["has_id"])
        if "is_empty" in body:
            return edge.IsEmptyCondition(body["is_empty"]["key"])
        if "is_null" in body:
            return edge.IsNullCondition(body["is_null"]["key"])
        if "has_vector" in body:
            return edge.HasVectorCondition(body["has_vector"])
        if "key" not in body:
            return self.filter(body)
        if (match := body.get("match")) is not None:
            if "any" in match:
                return edge.FieldCondition(key=body["key"], match=edge.MatchAny(match["any"]))
            if "except" in match:
                return edge.FieldCondition(key=body["key"], match=edge.MatchExcept(match["except"]))
            return edge.FieldCondition(key=body["key"], match=edge.MatchValue(_marked(match["value"])))
        if (limits := body.get("range")) is not None:
            limits = {side: limit for side, limit in limits.items() if limit is not None}
            return edge.FieldCondition(key=body["key"], range=edge.RangeFloat(**limits))
        raise Refused(400, f"Format error in JSON body: a condition with {sorted(body)}")

    # --- reading ------------------------------------------------------------------------------------------------------

    def retrieve(self, name: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        found = self.shard(name).retrieve(body["ids"], **_shown(body))
        return [_record(each) for each in found]

    def scroll(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        edge, order = self.edge, body.get("order_by")
        ordered = None
        if order:
            direction = edge.Direction.Desc if order.get("direction") == "desc" else edge.Direction.Asc
            ordered = edge.OrderBy(key=order["key"], direction=direction)
        found, offset = self.shard(name).scroll(
            edge.ScrollRequest(
                offset=body.get("offset"),
                limit=body.get("limit", 10),
                filter=self.filter(body.get("filter")),
                order_by=ordered,
                **_shown(body),
            )
        )
        return {"points": [_record(each) for each in found], "next_page_offset": None if order else _id(offset)}

    def query(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        edge, params = self.edge, body.get("params") or {}
        query = body["query"]
        vector = query["nearest"] if isinstance(query, dict) else query
        try:
            found = self.shard(name).query(
                edge.QueryRequest(
                    query=edge.Query.Nearest(vector, body.get("using")),
                    limit=body.get("limit", 10),
                    filter=self.filter(body.get("filter")),
                    params=edge.SearchParams(exact=bool(params.get("exact"))),
                    **_shown(body),
                )
            )
        except Exception as e:
            raise Refused(400, f"Wrong input: {e}") from e
        return {"points": [{**_record(each), "version": each.version, "score": each.score} for each in found]}

    def count(self, name: str, body: dict[str, Any]) -> dict[str, int]:
        request = self.edge.CountRequest(exact=True, filter=self.filter(body.get("filter")))
        return {"count": self.shard(name).count(request)}


def _shown(body: Mapping[str, Any]) -> dict[str, Any]:
    payload = body.get("with_payload", False)
    if isinstance(payload, dict):
        payload = payload.get("include", True)
    return {"with_payload": payload, "with_vector": body.get("with_vector", False)}


def _id(value: Any) -> Any:
    return value if value is None or isinstance(value, int) else str(value)


def _record(each: Any) -> dict[str, Any]:
    return {"id": _id(each.id), "payload": _unmarked(each.payload), "vector": each.vector}


def _marked(value: Any) -> Any:
    """Return a JSON value with a text for each true and false: the library's Python binding takes true in a condition
    for the number 1."""
    match value:
        case bool():
            return _MARKS[value]
        case dict():
            return {name: _marked(each) for name, each in value.items()}
        case list():
            return [_marked(each) for each in value]
        case _:
            return value


def _unmarked(value: Any) -> Any:
    match value:
        case str():
            return {mark: truth for truth, mark in _MARKS.items()}.get(value, value)
        case dict():
            return {name: _unmarked(each) for name, each in value.items()}
        case list():
            return [_unmarked(each) for each in value]
        case _:
            return value


def respond(engine: Engine, method: str, path: str, body: dict[str, Any]) -> Any:
    """Return the result of a request."""
    if path == "/collections":
        return {"collections": [{"name": name} for name in engine.settings]}
    match = re.fullmatch(r"/collections/([^/]+)(/.*)?", path)
    if match is None:
        raise Refused(404, "Not found")
    name, rest = unquote(match[1]), match[2] or ""
    match method, rest:
        case "GET", "/exists":
            return {"exists": name in engine.settings}
        case "GET", "":
            return engine.describe(name)
        case "PUT", "":
            return engine.create(name, body)
        case "PATCH", "":
            return engine.amend(name, body)
        case "DELETE", "":
            return engine.drop(name)
        case "PUT", "/index":
            engine.index(name, body)
        case "POST", "/points/batch":
            engine.batch(name, body["operations"])
            return [{"operation_id": 0, "status": "completed"}] * len(body["operations"])
        case "PUT", "/points":
            engine.update(name, "upsert", body)
        case "POST", "/points/delete":
            engine.update(name, "delete", body)
        case "POST", "/points":
            return engine.retrieve(name, body)
        case "POST", "/points/scroll":
            return engine.scroll(name, body)
        case "POST", "/points/query":
            return engine.query(name, body)
        case "POST", "/points/count":
            return engine.count(name, body)
        case _:
            raise Refused(404, "Not found")
    return {"operation_id": 0, "status": "completed"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine
    api_key: str

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        length = int(self.headers.get("content-length") or 0)
        content = self.rfile.read(length)
        if len(content) < length:
            self.close_connection = True
            return
        status, answer = 200, {"title": "qdrant - vector search engine", "version": VERSION}
        if url.path not in ("/", "/healthz") or (url.path == "/" and self.api_key):
            status, answer = self._answer(url.path, content)
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_POST = do_DELETE = do_PATCH = do_GET

    def _answer(self, path: str, content: bytes) -> tuple[int, dict[str, Any]]:
        try:
            if self.api_key and self.headers.get("api-key") != self.api_key:
                raise Refused(401, "Must provide an API key or an Authorization bearer token")
            if path == "/":
                return 200, {"title": "qdrant - vector search engine", "version": VERSION}
            result = respond(self.engine, self.command, path, json.loads(content) if content else {})
        except Refused as e:
            return e.status, {"status": {"error": str(e)}, "time": 0.0}
        except Exception as e:
            return 500, {"status": {"error": f"Service internal error: {e!r}"}, "time": 0.0}
        return 200, {"result": result, "status": "ok", "time": 0.0}

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  # as its base has it
        """Log nothing."""


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--api-key", default="")
    arguments = parser.parse_args()
    Handler.engine = Engine(arguments.data)
    Handler.api_key = arguments.api_key
    Listener(("127.0.0.1", arguments.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
