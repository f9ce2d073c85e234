"""Index the paragraphs of a folder of pages into LanceDB with LangChain's indexing API, for ``bench.retrieval``.

    python langchain_index.py FOLDER DATABASE STATE

As its guide shows: a record manager in SQLite, and ``cleanup="full"``, which deletes what the loader no longer returns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from langchain_classic.indexes import SQLRecordManager
from langchain_community.vectorstores import LanceDB
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.indexing import index

from bench.peers.embedding import BATCH, embed, paragraphs

FOLDER, DATABASE, STATE = (Path(argument) for argument in sys.argv[1:4])


class Embedder(Embeddings):
    """The function of all programs."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return embed(texts)

    def embed_query(self, text: str) -> list[float]:
        return embed([text])[0]


def documents() -> Iterator[Document]:
    for path in sorted(FOLDER.rglob("*.txt")):
        page = path.relative_to(FOLDER).as_posix()
        for text in paragraphs(path.read_text()):
            yield Document(page_content=text, metadata={"source": page})


def main() -> None:
    STATE.mkdir(exist_ok=True)
    store = LanceDB(uri=str(DATABASE), table_name="documents", embedding=Embedder(), mode="append")
    manager = SQLRecordManager("lancedb/documents", db_url=f"sqlite:///{STATE / 'records.db'}")
    manager.create_schema()
    index(documents(), manager, store, batch_size=BATCH, cleanup="full", source_id_key="source", key_encoder="blake2b")


if __name__ == "__main__":
    main()
