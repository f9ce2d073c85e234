"""OpenSearch 2: the real server, over plain HTTP, without the security plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.servers.cache import cached
from tests.servers.java import java, unzip_artifact
from tests.servers.server import Server

LOGGING: Final = """\
status = warn
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}] %marker%m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


class OpenSearchServer(Server):
    """One node that is the cluster; indices get one shard unless asked for more."""

    name = "opensearch"
    usual_port = 9200
    version = "2.19.4"
    brand = "opensearch"
    """As in the names of system properties."""
    heap = "512m"
    """Enough for tests, of which several run at once."""

    @classmethod
    def install(cls) -> Path:
        java()
        coordinates = f"org.opensearch.distribution.integ-test-zip:opensearch:{cls.version}:zip"
        return cached(f"opensearch-{cls.version}", lambda folder: unzip_artifact(coordinates, folder))

    def layout(self) -> None:
        for name in ("config", "data", "logs", "tmp"):
            (self.folder / name).mkdir()
        (self.folder / "config" / f"{self.brand}.yml").touch()
        (self.folder / "config" / "log4j2.properties").write_text(LOGGING)

    def command(self) -> list[str]:
        return [java(), *self.jvm(), "-cp", f"{self.home}/lib/*", self.main(), *self.settings()]

    def main(self) -> str:
        """The Java class that is started."""
        return "org.opensearch.bootstrap.OpenSearch"

    def jvm(self) -> list[str]:
        """Small and soon there. The log4j flags spare a stop 30 s. Without jna it cannot see that it is root, which
        it refuses to run as; a test server on the loopback may."""
        return [
            f"-Xms{self.heap}", f"-Xmx{self.heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djna.nosys=true",
            "-Djna.noclasspath=true", "-Djava.security.manager=allow", "-Dlog4j.shutdownHookEnabled=false",
            "-Dlog4j2.disable.jmx=true", f"-Djava.io.tmpdir={self.folder}/tmp",
            f"-D{self.brand}.path.home={self.home}", f"-D{self.brand}.path.conf={self.folder}/config",
            f"-D{self.brand}.distribution.type=zip",
        ]  # fmt: skip

    def settings(self) -> list[str]:
        """A node's; a full disk of the machine is no reason to stop a test."""
        return [
            f"-Epath.data={self.folder}/data", f"-Epath.logs={self.folder}/logs", f"-Ehttp.port={self.port}",
            f"-Etransport.port={self.another_port()}", "-Enetwork.host=127.0.0.1", "-Ediscovery.type=single-node",
            "-Enode.name=test", "-Ecluster.routing.allocation.disk.threshold_enabled=false",
        ]  # fmt: skip

    def ready(self) -> bool:
        return self.answers("/_cluster/health?wait_for_status=yellow&timeout=1s")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"
