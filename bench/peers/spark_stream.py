"""Load a feed of changes into PostgreSQL with Structured Streaming and ``foreachBatch``, for ``bench.trips``.

    python spark_stream.py FEED URL CHECKPOINT JAR

The feed is a folder to which files with changed rows are added, and rows of deleted documents, marked as such: a
stream of files reads each file once, and sees no change of a table. A batch may come twice (``foreachBatch`` is
at-least-once), so it is upserted: into a staging table, and from there in one transaction, the newest row of each id.
"""

from __future__ import annotations

import sys
from urllib.parse import urlsplit

import psycopg
from pyspark.sql import DataFrame, SparkSession

FEED, URL, CHECKPOINT, JAR = sys.argv[1:]
CREATE = "CREATE TABLE IF NOT EXISTS documents (id text PRIMARY KEY, title text, body text, updated bigint)"
APPLY = (
    """INSERT INTO documents
    SELECT DISTINCT ON (id) id, title, body, updated FROM staging ORDER BY id, updated DESC
    ON CONFLICT (id) DO UPDATE SET title = excluded.title, body = excluded.body, updated = excluded.updated
    WHERE documents.updated < excluded.updated""",
    """DELETE FROM documents USING staging
    WHERE staging.id = documents.id AND staging.deleted AND staging.updated >= documents.updated""",
)


def apply(batch: DataFrame, _: int) -> None:
    """Write the rows of a batch."""
    url = urlsplit(URL)
    (
        batch.write.mode("overwrite")
        .format("jdbc")
        .option("truncate", "true")
        .option("url", f"jdbc:postgresql://{url.hostname}:{url.port}{url.path}?reWriteBatchedInserts=true")
        .option("driver", "org.postgresql.Driver")
        .option("user", url.username)
        .option("password", url.password)
        .option("dbtable", "staging")
        .option("batchsize", 10_000)
        .save()
    )
    with psycopg.connect(URL) as connection:
        for statement in APPLY:
            connection.execute(statement)


def main() -> None:
    with psycopg.connect(URL) as connection:
        connection.execute(CREATE)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.jars", JAR)
        .getOrCreate()
    )
    (
        spark.readStream.schema("id string, title string, body string, updated long, deleted boolean")
        .parquet(FEED)
        .writeStream.foreachBatch(apply)
        .option("checkpointLocation", CHECKPOINT)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    spark.stop()


if __name__ == "__main__":
    main()
