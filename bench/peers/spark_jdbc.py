"""Load a Parquet table into PostgreSQL with Spark's JDBC writer, for ``bench.trips``.

    python spark_jdbc.py overwrite|merge ROWS URL JAR

``overwrite`` is the writer alone, as in Spark's guide: the table is emptied and filled anew. ``merge`` is what is
recommended where readers must not see that: into a staging table, from which one transaction of the database inserts
what is new, updates what differs and deletes what is missing.
"""

from __future__ import annotations

import sys

import psycopg
from jdbc import CREATE, overwrite, start_spark

MODE, ROWS, URL, JAR = sys.argv[1:]
MERGE = (
    """INSERT INTO documents SELECT id, title, body, updated FROM staging
    ON CONFLICT (id) DO UPDATE SET title = excluded.title, body = excluded.body, updated = excluded.updated
    WHERE (documents.title, documents.body) IS DISTINCT FROM (excluded.title, excluded.body)""",
    "DELETE FROM documents WHERE NOT EXISTS (SELECT 1 FROM staging WHERE staging.id = documents.id)",
)


def main() -> None:
    with psycopg.connect(URL) as connection:
        connection.execute(CREATE)
    spark = start_spark(JAR)
    overwrite(spark.read.parquet(ROWS), URL, "documents" if MODE == "overwrite" else "staging")
    if MODE == "merge":
        with psycopg.connect(URL) as connection:
            for statement in MERGE:
                connection.execute(statement)
    spark.stop()


if __name__ == "__main__":
    main()
