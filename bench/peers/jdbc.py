"""Spark's JDBC writer into PostgreSQL, for the programs of this folder that use it."""

from __future__ import annotations

from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession

CREATE = "CREATE TABLE IF NOT EXISTS documents (id text PRIMARY KEY, title text, body text, updated bigint)"


def start_spark(jar: str) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.jars", jar)
        .getOrCreate()
    )


def overwrite(frame: DataFrame, url: str, table: str) -> None:
    """Replace all rows of a table; ``url``: as psycopg takes it."""
    place = urlsplit(url)
    (
        frame.write.mode("overwrite")
        .format("jdbc")
        .option("truncate", "true")
        .option("url", f"jdbc:postgresql://{place.hostname}:{place.port}{place.path}?reWriteBatchedInserts=true")
        .option("driver", "org.postgresql.Driver")
        .option("user", place.username)
        .option("password", place.password)
        .option("dbtable", table)
        .option("batchsize", 10_000)
        .save()
    )
