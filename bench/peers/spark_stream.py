"""Load a feed of changes into PostgreSQL with Structured Streaming and ``foreachBatch``, for ``bench.trips``.

    python spark_stream.py FEED URL CHECKPOINT JAR

The feed is a folder to which files with changed rows are added, and rows of deleted documents, marked as such: a
stream of files reads each file once, and sees no change of a table. A batch may come twice (``foreachBatch`` is
at-least-once), so it is upserted: into a staging table, and from there in one transaction, the newest row of each id.
"""

from __future__ import annotations

import sys

import psycopg
from jdbc import CREATE, overwrite, start_spark
from pyspark.sql import DataFrame

FEED, URL, CHECKPOINT, JAR = sys.argv[1:]
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
    overwrite(batch, URL, "staging")
    with psycopg.connect(URL) as connection:
        for statement in APPLY:
            connection.execute(statement)


def main() -> None:
    with psycopg.connect(URL) as connection:
        connection.execute(CREATE)
    spark = start_spark(JAR)
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
