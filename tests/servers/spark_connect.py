"""A Spark Connect server on this machine."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from tests.servers.java import java
from tests.servers.server import Server
from tests.servers.spark_cluster import CLASS_PATH, JARS, quick_options


class SparkConnect(Server):
    """``sc://127.0.0.1:PORT``, on ``local[3]``."""

    name = "spark-connect"

    @classmethod
    def install(cls) -> Path:
        java()
        return JARS.parent

    def command(self) -> list[str]:
        told = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
        }
        submit = [
            java(),
            *quick_options(),
            "-Xmx1g",
            *OPENED,
            "-cp",
            CLASS_PATH,
            "org.apache.spark.deploy.SparkSubmit",
            "--master",
            "local[3]",
        ]
        submit += [word for key, value in told.items() for word in ("--conf", f"{key}={value}")]
        return [*submit, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]

    def environment(self) -> dict[str, str]:
        return {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(JARS.parents[1]), "SPARK_SCALA_VERSION": "2.13"}

    def ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"


_PACKAGES = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs"),
    *("sun.security.action", "sun.util.calendar"),
)
OPENED = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "--add-modules=jdk.incubator.vector",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _PACKAGES),
)
"""What Spark's own start script opens of Java."""
