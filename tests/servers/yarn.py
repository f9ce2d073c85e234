"""YARN on this machine: a resource manager and node managers, by the daemons' own main classes."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyspark

from tests.servers.cache import cached
from tests.servers.java import fetch_jars, java
from tests.servers.server import READY_POLL_S, Server
from tests.servers.spark_cluster import QUICK

POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ferryman</groupId><artifactId>yarn-server</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.hadoop</groupId><artifactId>hadoop-minicluster</artifactId><version>{}</version>
    </dependency>
  </dependencies>
</project>
"""

LOG: Final = """\
log4j.rootLogger=WARN,A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.target=System.err
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""


def site(properties: Mapping[str, object]) -> str:
    """A file of Hadoop's settings."""
    listed = "".join(f"<property><name>{k}</name><value>{v}</value></property>\n" for k, v in properties.items())
    return f"<configuration>\n{listed}</configuration>\n"


def daemon(home: Path, conf: Path, main: str) -> list[str]:
    """The command of a daemon. Its pages need a package of Java opened."""
    options = [*QUICK, "-Xmx256m", "-Djava.net.preferIPv4Stack=true", "--add-opens", "java.base/java.lang=ALL-UNNAMED"]
    return [java(), *options, "-cp", f"{conf}:{home}/lib/*", f"org.apache.hadoop.yarn.server.{main}"]


class Yarn(Server):
    """The resource manager; ``HADOOP_CONF_DIR`` is ``conf``."""

    name = "yarn"
    version = "3.5.0"
    """That of ``hadoop-client-api`` among the jars of pyspark."""

    @classmethod
    def install(cls) -> Path:
        java()
        return cached(f"yarn-{cls.version}", cls._fill)

    @classmethod
    def _fill(cls, folder: Path) -> None:
        fetch_jars(folder, POM.format(cls.version))

    @property
    def conf(self) -> Path:
        return self.folder / "conf"

    def layout(self) -> None:
        self.settings = {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.webapp.address": f"127.0.0.1:{self.port}",
            **{
                f"yarn.resourcemanager.{name}": f"127.0.0.1:{self.another_port()}"
                for name in ("address", "scheduler.address", "resource-tracker.address", "admin.address")
            },
            "yarn.resourcemanager.am.max-attempts": 2,
            "yarn.scheduler.minimum-allocation-mb": 128,
            "yarn.scheduler.maximum-allocation-mb": 4096,
            "yarn.scheduler.capacity.root.queues": "default",
            "yarn.scheduler.capacity.root.default.capacity": 100,
            "yarn.scheduler.capacity.maximum-am-resource-percent": 0.5,
            "yarn.nodemanager.resource.memory-mb": 4096,
            "yarn.nodemanager.resource.cpu-vcores": 4,
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 99,
            "yarn.log-aggregation-enable": "false",
        }
        core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": self.folder / "tmp"}
        self.conf.mkdir()
        (self.conf / "core-site.xml").write_text(site(core))
        (self.conf / "yarn-site.xml").write_text(site(self.settings))
        (self.conf / "capacity-scheduler.xml").write_text(site({}))
        (self.conf / "log4j.properties").write_text(LOG)

    def command(self) -> list[str]:
        return daemon(self.home, self.conf, "resourcemanager.ResourceManager")

    def environment(self) -> dict[str, str]:
        return {"HADOOP_LOG_DIR": str(self.folder)}

    def ready(self) -> bool:
        return bool(self.get("info")["clusterInfo"]["state"] == "STARTED")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def nodes(self) -> int:
        """How many node managers take containers."""
        return int(self.get("metrics")["clusterMetrics"]["activeNodes"])

    def applications(self) -> list[str]:
        """Ids of the running applications."""
        apps = self.get("apps?states=RUNNING")["apps"] or {"app": []}
        return [app["id"] for app in apps["app"]]

    def get(self, path: str) -> Any:
        """An answer of its REST interface."""
        with urllib.request.urlopen(f"{self.url}/ws/v1/cluster/{path}", timeout=30) as answer:
            return json.load(answer)


class YarnNode(Server):
    """A node manager, with room for containers of 4 GB and 4 cores."""

    name = "yarn-node"

    def __init__(self, yarn: Yarn) -> None:
        super().__init__()
        self._yarn = yarn

    @classmethod
    def install(cls) -> Path:
        return Yarn.install()

    def layout(self) -> None:
        conf = shutil.copytree(self._yarn.conf, self.folder / "conf")
        ports = {
            name: f"127.0.0.1:{self.another_port()}" for name in ("localizer.address", "collector-service.address")
        }
        own = {
            "hostname": "127.0.0.1",
            "address": f"127.0.0.1:{self.another_port()}",
            "webapp.address": f"127.0.0.1:{self.port}",
            **{name: f"127.0.0.1:{self.another_port()}" for name in ports},
            "local-dirs": self.folder / "local",
            "log-dirs": self.folder / "log",
        }
        settings = {**self._yarn.settings, **{f"yarn.nodemanager.{name}": value for name, value in own.items()}}
        (conf / "yarn-site.xml").write_text(site(settings))

    def start(self) -> YarnNode:
        """Start it, and wait until the resource manager knows it."""
        before = self._yarn.nodes
        super().start()
        while self._yarn.nodes <= before:
            time.sleep(READY_POLL_S)
        return self

    def command(self) -> list[str]:
        return daemon(self.home, self.folder / "conf", "nodemanager.NodeManager")

    def environment(self) -> dict[str, str]:
        return {"HADOOP_LOG_DIR": str(self.folder)}

    def ready(self) -> bool:
        return self.answers("/ws/v1/node/info")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def spark_settings(executors: int) -> list[str]:
    """Options of ``ferryman run`` for so many small executors, with jars from here: else a run uploads 400 MB."""
    jars = Path(pyspark.__file__).parent / "jars"
    settings = {
        "spark.yarn.jars": f"local:{jars}/*",
        "spark.executor.instances": executors,
        "spark.executor.memory": "512m",
        "spark.yarn.am.memory": "512m",
        "spark.yarn.am.extraJavaOptions": " ".join(QUICK),
        "spark.executor.extraJavaOptions": " ".join(QUICK),
    }
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
