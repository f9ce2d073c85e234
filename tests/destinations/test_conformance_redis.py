"""``Redis`` keeps every promise of the port, and of destinations that are servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from ferryman.destinations import Delivery, Destination, Redis
from ferryman.destinations.redis import read_record
from ferryman.testing.destinations import delivery
from ferryman.testing.servers import ServerSuite
from tests.servers.redis import PASSWORD, RedisServer


class Suite(ServerSuite):
    keyed = True
    secret = PASSWORD
    trigger = b"EVALSHA"
    more: dict[str, Any] = {}  # noqa: RUF012 - a constant

    @pytest.fixture(autouse=True)
    def _server(self, server: Callable[[str], RedisServer]) -> None:
        self.real = server("redis")

    def server(self) -> tuple[str, int]:
        return "127.0.0.1", self.real.port

    def destination_at(self, folder: Path, host: str, port: int) -> Destination:
        return Redis(self.real.url_of(port=port), f"{folder.name}:", **self.more)

    def hashes(self, folder: Path) -> list[str]:
        """By the records; each has a key, and there are no others."""
        prefix = f"{folder.name}:"
        with redis.Redis(port=self.real.port, password=PASSWORD) as client:
            records = {id: read_record(each) for id, each in client.hgetall(f"ferryman:{prefix}versions").items()}
            there = {id: each.hash for id, each in records.items() if each.operation == "upsert"}
            keys = {key.removeprefix(prefix.encode()) for key in client.scan_iter(f"{prefix}*", count=1000)}
            assert keys <= there.keys()
            assert self.more.get("value") == "sorted_set" or keys == there.keys()
        return list(there.values())

    def stop(self) -> None:
        self.real.kill()

    def start(self) -> None:
        self.real.start()

    def wrong_credentials(self, folder: Path) -> Destination:
        return Redis(self.real.url_of(password=f"{PASSWORD}-and-wrong"), f"{folder.name}:", **self.more)


@pytest.mark.rule("redis.newest")
class TestHash(Suite):
    """A hash has room for all fields; what it refuses is a lone surrogate."""

    def unfit(self, id: str, sequence: int) -> Delivery:
        return delivery(id, sequence, fields={"title": {"\ud800": sequence}})


@pytest.mark.slow
class TestJson(Suite):
    more = {"value": "json"}  # noqa: RUF012


@pytest.mark.slow
class TestSortedSet(Suite):
    more = {"value": "sorted_set", "scores": "words"}  # noqa: RUF012

    def unfit(self, id: str, sequence: int) -> Delivery:
        return delivery(id, sequence, fields={"words": {"word": "many"}})
