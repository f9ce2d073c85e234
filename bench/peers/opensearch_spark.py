"""Load a Parquet table into OpenSearch with its connector for Spark, for ``bench.trips``.

    python opensearch_spark.py ROWS URL JAR FORMAT

As its guide shows: appended with the documents' ids, so that what is there is replaced.
"""

from __future__ import annotations

import sys
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

ROWS, URL, JAR, FORMAT = sys.argv[1:]


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.jars", JAR)
        .getOrCreate()
    )
    url = urlsplit(URL)
    prefix = FORMAT.partition(".")[0]
    prefix = "es" if FORMAT == "es" else "opensearch"
    options = {"nodes": url.hostname, "port": str(url.port), "nodes.wan.only": "true", "mapping.id": "id"}
    (
        spark.read.parquet(ROWS)
        .write.format(FORMAT)
        .mode("append")
        .options(**{f"{prefix}.{name}": value for name, value in options.items()})
        .save("documents")
    )
    spark.stop()


if __name__ == "__main__":
    main()
