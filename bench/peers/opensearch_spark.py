"""Load a Parquet table into OpenSearch with its connector for Spark, for ``bench.trips``.

    python opensearch_spark.py ROWS URL INDEX JAR …

The newest connector is for Spark 3 and Scala 2.13, for which there is no PySpark: so the calls of its guide, an append
with the documents' ids, which replaces what is there, go to Spark's own classes in a JVM that py4j talks to.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

OPENED = ("lang", "lang.invoke", "io", "net", "nio", "util", "util.concurrent", "util.concurrent.atomic")
"""Packages of Java that Spark opens for itself where it is started by its own script; and two more."""


def main() -> None:
    rows, url, index, *jars = sys.argv[1:]
    opened = [f"java.base/java.{name}" for name in OPENED] + ["java.base/sun.nio.ch", "java.base/sun.security.action"]
    port, token = launch_gateway(
        classpath=os.pathsep.join(jars),
        die_on_exit=True,
        enable_auth=True,
        javaopts=["-Xmx2g", *(f"--add-opens={name}=ALL-UNNAMED" for name in opened)],
        jarpath=next(jar for jar in jars if Path(jar).name.startswith("py4j")),
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    builder = gateway.jvm.org.apache.spark.sql.SparkSession.builder().master("local[2]").appName("trip")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    address = urlsplit(url)
    writer = spark.read().parquet(rows).write().format("opensearch").mode("append")
    writer = writer.option("opensearch.nodes", address.hostname).option("opensearch.port", str(address.port))
    writer.option("opensearch.nodes.wan.only", "true").option("opensearch.mapping.id", "id").save(index)
    spark.stop()
    gateway.shutdown()


if __name__ == "__main__":
    main()
