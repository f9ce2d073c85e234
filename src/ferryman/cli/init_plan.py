"""A plan: index the files of documents/ into a SQLite database with full-text search.

Try it:      ferryman run plan.py
Search:      ferryman search index.db "kill"
See counts:  ferryman status plan.py
"""

from pathlib import Path

from ferryman import Document, Plan
from ferryman.destinations import Sql
from ferryman.sources import Files


def describe(doc: Document) -> Document | None:
    """A step: gets a document, returns it (it goes on) or None (it is dropped on purpose).

    It may return children too, made with doc.child(key, raw=...): pages of a book, attachments of a mail.

    An exception is an error of this one document: the others go on, and it is tried again. Steps may run more
    than once (after a kill, say), so they only change the document; what has an effect is a destination.
    """
    text = doc.text()  # the file's bytes as UTF-8; if they are not, the document is refused and the reason says where
    if "draft" in Path(doc.id).name:
        return None
    lines = [line.strip("# \t") for line in text.splitlines()]
    doc["title"] = next((line for line in lines if line), doc.id)
    doc["words"] = len(text.split())
    return doc


# Name and version decide where the state lives: .ferryman/<name>-v<version>/ beside this file. When you add or remove
# a node, raise the version and run once with --from-version and the old one.
plan = Plan("my-documents", version=1)

# Where documents come from. Each file is a document; its id is its path below the folder. What is new, changed or
# deleted since the last run is found by content. Relative paths are meant from this file's folder.
files = plan.source("files", Files("documents", include=["**/*.txt", "**/*.md"]))

# What is done with each of them. Add steps as you like: described.step("next", another_function). Where documents take
# different ways, put a router: described.route("by-kind", ByField("kind")), and a node for each branch after it.
described = files.step("describe", describe)

# Where they go. The table has the document's text and all its fields; `columns` copies fields into columns of their
# own; `full_text` says what `ferryman search` looks through.
described.destination(
    "index",
    Sql(
        "sqlite:///index.db",
        columns={"title": "title", "words": "words"},
        full_text=["title", "text"],
    ),
)
