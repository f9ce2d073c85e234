"""Kafka 4: the real broker, one node that is its own controller (KRaft); or two brokers with a controller."""

from __future__ import annotations

import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from tests.servers.cache import cached
from tests.servers.java import fetch_jars, java
from tests.servers.server import Server, ServerFailed

POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ferryman</groupId><artifactId>kafka-server</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{kafka}</version>
    </dependency>
  </dependencies>
</project>
"""

SETTINGS: Final = """\
process.roles={roles}
node.id={node}
controller.quorum.voters={voter}
listeners={listeners}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/data
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor={replicas}
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr=1
default.replication.factor={replicas}
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
auto.leader.rebalance.enable=false
auto.create.topics.enable=true
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
log.cleaner.backoff.ms=500
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
"""
"""The cleaners run often, so that tests see what retention and compaction do. A controller takes a broker for dead
three seconds after it was killed, and leaves leaders where they are once it is back."""

LOG4J: Final = """\
Configuration:
  status: "ERROR"
  Appenders:
    Console:
      name: STDOUT
      PatternLayout:
        pattern: "[%d] %p %m (%c)%n"
  Loggers:
    Root:
      level: "WARN"
      AppenderRef:
        - ref: STDOUT
"""

REQUEST: Final = bytes.fromhex("0000000e 0012 0000 00000001 0004 74657374".replace(" ", ""))
"""ApiVersions, version 0, of a client called "test"."""


class KafkaServer(Server):
    """One broker; a topic that somebody writes to is made by itself, as on most clusters.

    Args:
        controller: of its cluster; None: itself.
        roles: "broker", "controller", or both.
        replicas: of topics, unless somebody says otherwise.
    """

    name = "kafka"
    usual_port = 9092
    version = "4.1.1"
    cluster: Final = "FerrymanTestCluster0A"

    def __init__(
        self,
        folder: Path | None = None,
        *,
        node: int = 1,
        roles: str = "broker,controller",
        controller: KafkaServer | None = None,
        replicas: int = 1,
    ) -> None:
        super().__init__(folder)
        self.node, self.roles, self.controller, self.replicas = node, roles, controller or self, replicas
        self.controller_port = self.port if roles == "controller" else self.another_port()

    @classmethod
    def install(cls) -> Path:
        java()
        return cached(f"kafka-{cls.version}", cls._fill)

    @classmethod
    def _fill(cls, folder: Path) -> None:
        fetch_jars(folder, POM.format(kafka=cls.version))

    def layout(self) -> None:
        listeners = {
            "broker": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller": f"CONTROLLER://127.0.0.1:{self.controller_port}",
        }
        settings = SETTINGS.format(
            folder=self.folder,
            node=self.node,
            roles=self.roles,
            voter=f"{self.controller.node}@127.0.0.1:{self.controller.controller_port}",
            listeners=",".join(listeners[role] for role in self.roles.split(",")),
            replicas=self.replicas,
        )
        (self.folder / "server.properties").write_text(settings)
        (self.folder / "log4j2.yaml").write_text(LOG4J)
        formatted = subprocess.run(
            [*self._java("kafka.tools.StorageTool"), "format", "-t", self.cluster, "-c", "server.properties"],
            cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if formatted.returncode:
            raise ServerFailed(f"kafka's folder could not be made: {formatted.stdout}{formatted.stderr}")

    def _java(self, main: str) -> list[str]:
        small = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [java(), *small, "-Dlog4j2.disable.jmx=true", "-cp", f"{self.home}/lib/*", main]

    def command(self) -> list[str]:
        [java_command, *rest] = self._java("kafka.Kafka")
        return [java_command, f"-Dlog4j2.configurationFile={self.folder}/log4j2.yaml", *rest, "server.properties"]

    def ready(self) -> bool:
        """Does it answer the first request of every client?"""
        with socket.create_connection(("127.0.0.1", self.port), 2) as asking:
            asking.settimeout(2)
            asking.sendall(REQUEST)
            return len(asking.recv(64)) > 10

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"


class Brokers:
    """A controller and two brokers; each topic is on both of them, unless somebody says otherwise."""

    def __init__(self) -> None:
        self.controller = KafkaServer(node=3, roles="controller", replicas=2)
        self.brokers = {
            node: KafkaServer(node=node, roles="broker", controller=self.controller, replicas=2) for node in (1, 2)
        }

    def __enter__(self) -> Self:
        try:
            self.controller.start()
            with ThreadPoolExecutor(len(self.brokers)) as at_once:
                list(at_once.map(KafkaServer.start, self.brokers.values()))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in (*self.brokers.values(), self.controller):
            server.close()

    @property
    def url(self) -> str:
        return ",".join(broker.url for broker in self.brokers.values())
