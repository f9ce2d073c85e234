"""Cassandra 5: the real server, one node."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from tests.servers.cache import cached
from tests.servers.java import fetch_jars, java
from tests.servers.server import Server

POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ferryman</groupId><artifactId>cassandra-server</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId><version>{cassandra}</version>
    </dependency>
  </dependencies>
</project>
"""

SETTINGS: Final = """\
cluster_name: ferryman-tests
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
data_file_directories: ["{folder}/data"]
commitlog_directory: "{folder}/commitlog"
saved_caches_directory: "{folder}/saved_caches"
hints_directory: "{folder}/hints"
cdc_raw_directory: "{folder}/cdc_raw"
commitlog_sync: batch
commitlog_segment_size: 8MiB
disk_optimization_strategy: ssd
listen_address: 127.0.0.1
rpc_address: 127.0.0.1
storage_port: {storage}
native_transport_port: {port}
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "127.0.0.1:{storage}"
authenticator: AllowAllAuthenticator
authorizer: AllowAllAuthorizer
role_manager: CassandraRoleManager
concurrent_reads: 4
concurrent_writes: 8
concurrent_compactors: 1
memtable_heap_space: 64MiB
memtable_offheap_space: 64MiB
key_cache_size: 4MiB
file_cache_size: 32MiB
networking_cache_size: 8MiB
auto_snapshot: false
read_request_timeout: 60s
range_request_timeout: 60s
write_request_timeout: 60s
cas_contention_timeout: 60s
"""
"""With ``batch`` a server that is killed has what it confirmed; its default loses the last seconds. Without
``auto_snapshot`` a dropped table leaves no copy, so that the tests of a session do not fill the disk. A machine
that is busy with other tests takes longer than the two seconds that a write has by default."""

LOGBACK: Final = """\
<configuration>
  <appender name="STDOUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level [%thread] %date{ISO8601} %F:%L - %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="STDOUT" /></root>
</configuration>
"""

OPENS: Final = (
    "java.base/java.io", "java.base/java.lang", "java.base/java.lang.module", "java.base/java.lang.reflect",
    "java.base/java.math", "java.base/java.net", "java.base/java.nio", "java.base/java.nio.charset",
    "java.base/java.nio.file.spi", "java.base/java.util", "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic", "java.base/jdk.internal.loader", "java.base/jdk.internal.math",
    "java.base/jdk.internal.module", "java.base/jdk.internal.ref", "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar", "java.base/sun.nio.ch", "jdk.management/com.sun.management.internal",
    "jdk.management.jfr/jdk.management.jfr",
)  # fmt: skip
EXPORTS: Final = (
    "java.base/jdk.internal.misc", "java.base/jdk.internal.ref", "java.base/sun.nio.ch", "java.base/jdk.internal.vm",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi", "java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server",
    "java.sql/java.sql", "jdk.naming.rmi/com.sun.jndi.rmi.registry",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi", "jdk.compiler/com.sun.tools.javac.file",
)  # fmt: skip
"""What Java 17 must open of itself to Cassandra, as its own start script has it."""

OPTIONS_REQUEST: Final = bytes.fromhex("04 00 0000 05 00000000".replace(" ", ""))
"""Asks what the server supports, in version 4 of the protocol; it needs no login."""

SUPPORTED: Final = 6


class CassandraServer(Server):
    """One node without passwords."""

    name = "cassandra"
    usual_port = 9042
    version = "5.0.5"
    start_s = 180.0
    stop_s = 20.0

    @classmethod
    def install(cls) -> Path:
        java(most=17)
        return cached(f"cassandra-{cls.version}", cls._fill)

    @classmethod
    def _fill(cls, folder: Path) -> None:
        fetch_jars(folder, POM.format(cassandra=cls.version))

    def layout(self) -> None:
        settings = SETTINGS.format(folder=self.folder, port=self.port, storage=self.another_port())
        (self.folder / "cassandra.yaml").write_text(settings)
        (self.folder / "logback.xml").write_text(LOGBACK)
        (self.folder / "tmp").mkdir()

    def command(self) -> list[str]:
        return [
            java(most=17), "-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1", "-Xss512k", f"-Djava.io.tmpdir={self.folder}/tmp",
            "-Djdk.attach.allowAttachSelf=true", "-Dio.netty.tryReflectionSetAccessible=true",
            *[word for each in OPENS for word in ("--add-opens", f"{each}=ALL-UNNAMED")],
            *[word for each in EXPORTS for word in ("--add-exports", f"{each}=ALL-UNNAMED")],
            f"-Dcassandra.config=file://{self.folder}/cassandra.yaml", f"-Dcassandra.storagedir={self.folder}",
            f"-Dlogback.configurationFile=file://{self.folder}/logback.xml", "-Dcassandra-foreground=yes",
            "-Dcassandra.ring_delay_ms=1", "-Dcassandra.skip_wait_for_gossip_to_settle=0",
            "-Dcassandra.superuser_setup_delay_ms=0", "-Dcassandra.jmx.local.port=0",
            "-cp", f"{self.home}/lib/*", "org.apache.cassandra.service.CassandraDaemon",
        ]  # fmt: skip

    def ready(self) -> bool:
        """Does it answer the first request of every client?"""
        with socket.create_connection(("127.0.0.1", self.port), 2) as asking:
            asking.settimeout(5)
            asking.sendall(OPTIONS_REQUEST)
            answer = asking.recv(64)
            return len(answer) > 5 and answer[4] == SUPPORTED

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"


class ProtectedCassandra(CassandraServer):
    """One node that asks for a user and a password: ``cassandra``, ``cassandra``."""

    name = "cassandra-protected"
    usual_port = 0

    def layout(self) -> None:
        super().layout()
        settings = self.folder / "cassandra.yaml"
        settings.write_text(settings.read_text().replace("AllowAllAuthenticator", "PasswordAuthenticator"))
