"""Elasticsearch 7 and 8: OpenSearch's older sister, by the same protocol."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.servers.cache import Missing, cached
from tests.servers.java import java, unzip_artifact
from tests.servers.opensearch import OpenSearchServer


class Elasticsearch7(OpenSearchServer):
    """One node, without security."""

    name = "elasticsearch7"
    version = "7.17.28"
    brand = "es"

    @classmethod
    def install(cls) -> Path:
        java()
        coordinates = f"org.elasticsearch.distribution.integ-test-zip:elasticsearch:{cls.version}:zip"
        return cached(f"elasticsearch-{cls.version}", lambda folder: unzip_artifact(coordinates, folder))

    def layout(self) -> None:
        super().layout()
        (self.folder / "config" / "es.yml").rename(self.folder / "config" / "elasticsearch.yml")

    def main(self) -> str:
        return "org.elasticsearch.bootstrap.Elasticsearch"

    def jvm(self) -> list[str]:
        return [*super().jvm(), "-Des.distribution.flavor=default", "-Des.bundled_jdk=false"]

    def settings(self) -> list[str]:
        return [*super().settings(), "-Expack.security.enabled=false"]

    def environment(self) -> dict[str, str]:
        return {"LIBFFI_TMPDIR": str(self.folder / "tmp")}


class Elasticsearch8(Elasticsearch7):
    """Started by its own script, which refuses root: then as the user nobody."""

    name = "elasticsearch8"
    version = "8.19.0"

    def layout(self) -> None:
        super().layout()
        config = {
            "path.data": self.folder / "data", "path.logs": self.folder / "logs", "http.port": self.port,
            "transport.port": self.another_port(), "network.host": "127.0.0.1", "discovery.type": "single-node",
            "xpack.security.enabled": "false", "cluster.routing.allocation.disk.threshold_enabled": "false",
        }  # fmt: skip
        lines = "".join(f"{key}: {value}\n" for key, value in config.items())
        (self.folder / "config" / "elasticsearch.yml").write_text(lines)
        options = (self.home / "config" / "jvm.options").read_text().splitlines(keepends=True)
        kept = [
            line for line in options if "-Xlog:" not in line and "ErrorFile" not in line
        ]  # they name its own folder
        (self.folder / "config" / "jvm.options").write_text("".join(kept))
        if os.geteuid() == 0:
            for path in [self.folder, *self.folder.rglob("*")]:
                shutil.chown(path, "nobody", "nogroup")
            # The cache may be in a home folder where nobody else comes in.
            shutil.copytree(self.home, self.folder / "home", copy_function=shutil.copyfile)

    def command(self) -> list[str]:
        if os.geteuid() != 0:
            return ["bash", f"{self.home}/bin/elasticsearch"]
        if not shutil.which("setpriv"):
            raise Missing("Elasticsearch refuses root, and there is no setpriv to become somebody else")
        as_nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig=KILL"]
        return [*as_nobody, "bash", f"{self.folder}/home/bin/elasticsearch"]

    def environment(self) -> dict[str, str]:
        home = Path(os.path.realpath(shutil.which(java()) or java())).parents[1]
        return {
            "ES_JAVA_HOME": str(home),
            "ES_PATH_CONF": str(self.folder / "config"),
            "ES_JAVA_OPTS": "-Xms512m -Xmx512m",
            "ES_TMPDIR": str(self.folder / "tmp"),
            "HOME": str(self.folder),
        }
