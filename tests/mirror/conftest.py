"""The server, plans whose keyspaces are their own, and somebody who reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Cassandra
from ferryman.mirror.mirror import Mirror
from ferryman.mirror.tables import keyspace_of
from ferryman.net.cassandra import CassandraServers, Connection
from ferryman.plan import Plan
from tests.servers.cassandra import CassandraServer
from tests.support.plan_world import PlanWorld
from tests.support.plan_world import place as place  # a fixture


@pytest.fixture(scope="module")
def cassandra(server: Callable[[str], Any]) -> CassandraServer:
    pytest.importorskip("cassandra")
    started: CassandraServer = server("cassandra")
    return started


@pytest.fixture(scope="module")
def reader(cassandra: CassandraServer) -> Iterator[Connection]:
    """Any program that knows the tables."""
    with CassandraServers(cassandra.url).connection() as connection:
        yield connection


class Mirrored(PlanWorld):
    """A plan ``network``, and its mirror at the real server."""

    cassandra: CassandraServer
    reader: Connection

    @property
    def target(self) -> Cassandra:
        return Cassandra(self.cassandra.url)

    @property
    def mirror(self) -> Mirror:
        return Mirror(self.root, self.plan, self.target)

    def keyspace(self, source: str = "docs", step: str = "") -> str:
        return keyspace_of(source, self.plan.name, self.plan.version, step)

    def rows(self, step: str = "out", source: str = "docs", where: str = "", *values: Any) -> list[Any]:
        """Rows of the first table, as the server has them."""
        table = f"{self.keyspace(source, step)}.jj_output_step_status"
        return self.reader.rows(f"SELECT * FROM {table} {where}", values)

    def hashes(self, source: str = "docs") -> list[Any]:
        return self.reader.rows(f"SELECT * FROM {self.keyspace(source)}.jj_scanner_doc_hash")


def build_own(world: PlanWorld) -> Plan:
    return Plan(f"mirrored-{world.folder.name}", version=1)


@pytest.fixture
def world(place: Path, cassandra: CassandraServer, reader: Connection) -> Mirrored:
    made = Mirrored(place, build_own, sleep=lambda _: None, wait=0)
    made.cassandra, made.reader = cassandra, reader
    return made
