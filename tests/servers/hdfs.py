"""HDFS on this machine: a name node and a data node in one process, which Hadoop has for tests."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Final

from tests.servers.cache import cached
from tests.servers.java import PLUGIN, java, run_maven
from tests.servers.server import Server
from tests.servers.spark_cluster import QUICK
from tests.servers.yarn import LOG, Yarn, site

POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ferryman</groupId><artifactId>hdfs-server</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.junit.jupiter</groupId><artifactId>junit-jupiter-api</artifactId><version>5.11.4</version></dependency>
    <dependency><groupId>org.assertj</groupId><artifactId>assertj-core</artifactId><version>3.27.3</version></dependency>
    <dependency><groupId>org.mockito</groupId><artifactId>mockito-core</artifactId><version>5.14.2</version></dependency>
  </dependencies>
</project>
"""
"""What the classes of Hadoop's tests need beside Hadoop."""


class Hdfs(Server):
    """Reached over HTTP; its user is whoever a client says it is."""

    name = "hdfs"
    usual_port = 9870

    @classmethod
    def install(cls) -> Path:
        cls.hadoop = Yarn.install()
        return cached(f"hdfs-{Yarn.version}", cls._fill)

    @classmethod
    def _fill(cls, folder: Path) -> None:
        (folder / "pom.xml").write_text(POM)
        run_maven(f"{PLUGIN}:copy-dependencies", f"-DoutputDirectory={folder}/lib", folder=folder)

    def layout(self) -> None:
        (self.folder / "conf").mkdir()
        (self.folder / "conf" / "log4j.properties").write_text(LOG)
        settings = {"dfs.permissions.enabled": "false", "dfs.namenode.fs-limits.min-block-size": 1024}
        (self.folder / "conf" / "hdfs-site.xml").write_text(site(settings))

    def command(self) -> list[str]:
        options = [
            *QUICK,
            "-Xmx400m",
            "-Djava.net.preferIPv4Stack=true",
            "--add-opens",
            "java.base/java.lang=ALL-UNNAMED",
        ]
        options += [f"-Dtest.build.data={self.folder}/data", f"-Dhadoop.tmp.dir={self.folder}/tmp"]
        main = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
        ports = ["-nnport", str(self.another_port()), "-nnhttpport", str(self.port)]
        return [
            java(),
            *options,
            "-cp",
            f"{self.folder}/conf:{self.hadoop}/lib/*:{self.home}/lib/*",
            main,
            "-nomr",
            "-format",
            *ports,
        ]

    def ready(self) -> bool:
        asked = f"{self.url.replace('webhdfs', 'http')}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return any(bean.get("NumLiveDataNodes") for bean in json.load(answer)["beans"])

    @property
    def url(self) -> str:
        return f"webhdfs://127.0.0.1:{self.port}"
