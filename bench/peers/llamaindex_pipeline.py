"""Index the paragraphs of a folder of pages into LanceDB with LlamaIndex's pipeline, for ``bench.retrieval``.

    python llamaindex_pipeline.py FOLDER DATABASE STATE

As its guide shows: a document store tells what has changed and what is gone, a cache has the results of the
transformations, and both are persisted at the end.
"""

from __future__ import annotations

import sys
from pathlib import Path

from llama_index.core import Document
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import TextSplitter
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.vector_stores.lancedb import LanceDBVectorStore

from bench.peers.embedding import BATCH, embed, paragraphs

FOLDER, DATABASE, STATE = (Path(argument) for argument in sys.argv[1:4])


class Store(LanceDBVectorStore):
    """The store, with a delete that LanceDB 0.40 understands: it takes the package's own, whose value stands in double
    quotes, for the name of a column."""

    def delete(self, ref_doc_id: str, **_: object) -> None:
        quoted = ref_doc_id.replace("'", "''")
        self.table.delete(f"{self.doc_id_key} = '{quoted}'")


class Paragraphs(TextSplitter):
    """The splitter of all programs."""

    def split_text(self, text: str) -> list[str]:
        return paragraphs(text)


class Embedder(BaseEmbedding):
    """The function of all programs."""

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return embed(texts)

    def _get_text_embedding(self, text: str) -> list[float]:
        return embed([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return embed([query])[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return embed([query])[0]


def main() -> None:
    pages = [
        Document(text=path.read_text(), id_=path.relative_to(FOLDER).as_posix())
        for path in sorted(FOLDER.rglob("*.txt"))
    ]
    pipeline = IngestionPipeline(
        transformations=[Paragraphs(), Embedder(embed_batch_size=BATCH)],
        docstore=SimpleDocumentStore(),
        docstore_strategy=DocstoreStrategy.UPSERTS_AND_DELETE,
        vector_store=Store(uri=str(DATABASE), table_name="documents"),
    )
    if STATE.exists():
        pipeline.load(str(STATE))
    pipeline.run(documents=pages)
    pipeline.persist(str(STATE))


if __name__ == "__main__":
    main()
