"""A standalone Spark cluster on this machine: a master, and workers that may see other folders than we do."""

from __future__ import annotations

import functools
import json
import shlex
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyspark

from ferryman.engine.runner.class_sharing import java_options
from tests.servers.java import java
from tests.servers.server import Server

JARS = Path(pyspark.__file__).parent / "jars" / "*"
CLASS_PATH = ":".join([*map(str, JARS.parent.glob("slf4j-api-*.jar")), str(JARS)])
"""The class path of a driver: an archive of its classes is for no other."""


QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM that lives for seconds: what the second compiler makes faster, no test does long enough."""


@functools.cache
def quick_options() -> tuple[str, ...]:
    """``QUICK``, and classes from the archive of a driver, if there is one: for a JVM with ``CLASS_PATH``."""
    return (*QUICK, *shlex.split(java_options("", queries=True)))


def executor_options() -> str:
    """The same for ``spark.executor.extraJavaOptions``."""
    return shlex.join(quick_options())


class SparkMaster(Server):
    """``spark://127.0.0.1:PORT``; its page tells which workers live."""

    name = "spark-master"

    @classmethod
    def install(cls) -> Path:
        java()
        return JARS.parent

    def layout(self) -> None:
        self.page_port = self.another_port()

    def command(self) -> list[str]:
        told = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.page_port)]
        return [java(), *quick_options(), "-Xmx512m", "-cp", CLASS_PATH, "org.apache.spark.deploy.master.Master", *told]

    def ready(self) -> bool:
        try:
            return bool(self.about()["status"] == "ALIVE")
        except json.JSONDecodeError:  # for a moment its page answers, and the one for programs is not there yet
            return False

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def about(self) -> Any:
        """What its page says, as JSON."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.page_port}/json/", timeout=30) as answer:
            return json.load(answer)


class SparkWorker(Server):
    """A worker with one core.

    Args:
        before: shell commands in a mount namespace of its own (only root may), such as ``mount -t tmpfs none /data``:
            what they change nobody else sees. Without any it sees what we see.
        python: of its processes.
        host: its address: Spark runs no twin of a task on the host of the first.
    """

    name = "spark-worker"

    def __init__(
        self,
        master: SparkMaster,
        before: Sequence[str] = (),
        python: str = sys.executable,
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__()
        self._host = host
        self.master = master
        self._before = before
        self._python = python

    @classmethod
    def install(cls) -> Path:
        return JARS.parent

    def command(self) -> list[str]:
        told = ["--host", self._host, "--port", str(self.port), "--webui-port", "0", "--cores", "1", "--memory", "1g"]
        main = [java(), *quick_options(), "-Xmx256m", "-cp", CLASS_PATH, "org.apache.spark.deploy.worker.Worker", *told]
        main += ["--work-dir", str(self.folder), self.master.url]
        if not self._before:
            return main
        return ["unshare", "--mount", "sh", "-ec", "; ".join([*self._before, f"exec {shlex.join(main)}"])]

    def environment(self) -> dict[str, str]:
        spark = {"SPARK_HOME": str(JARS.parents[1]), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": self._host}
        return {"PYSPARK_PYTHON": self._python, **spark}

    def ready(self) -> bool:
        workers = self.master.about()["workers"]
        return any(each["port"] == self.port and each["state"] == "ALIVE" for each in workers)

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}"
