"""Load a Parquet table into PostgreSQL with Spark's JDBC writer, for ``bench.trips``.

    python spark_jdbc.py overwrite|merge ROWS URL JAR

``overwrite`` is the writer alone, as in Spark's guide: the table is emptied and filled anew. ``merge`` is what is
recommended where readers must not see that: into a staging table, from which one transaction of the database inserts
what is new, updates what differs and deletes what is missing.
"""

from __future__ import annotations

import sys
from urllib.parse import urlsplit

import psycopg
from pyspark.sql import SparkSession

MODE, ROWS, URL, JAR = sys.argv[1:]
CREATE = "CREATE TABLE IF NOT EXISTS documents (id text PRIMARY KEY, title text, body text, updated bigint)"
MERGE = (
    """INSERT INTO documents SELECT id, title, body, updated FROM staging
    ON CONFLICT (id) DO UPDATE SET title = excluded.title, body = excluded.body, updated = excluded.updated
    WHERE (documents.title, documents.body) IS DISTINCT FROM (excluded.title, excluded.body)""",
    "DELETE FROM documents WHERE NOT EXISTS (SELECT 1 FROM staging WHERE staging.id = documents.id)",
)


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
    url = urlsplit(URL)
    (
        spark.read.parquet(ROWS)
        .write.mode("overwrite")
        .format("jdbc")
        .option("truncate", "true")
        .option("url", f"jdbc:postgresql://{url.hostname}:{url.port}{url.path}?reWriteBatchedInserts=true")
        .option("driver", "org.postgresql.Driver")
        .option("user", url.username)
        .option("password", url.password)
        .option("dbtable", "documents" if MODE == "overwrite" else "staging")
        .option("batchsize", 10_000)
        .save()
    )
    if MODE == "merge":
        with psycopg.connect(URL) as connection:
            for statement in MERGE:
                connection.execute(statement)
    spark.stop()


if __name__ == "__main__":
    main()
