"""A plan that mints identifiers for its jobs, and keeps their documents in a table, each delivery a row."""

from __future__ import annotations

from pathlib import Path

from ferryman import Plan
from ferryman.destinations import JobIdentifiers, Sql
from ferryman.document import Document
from ferryman.routers import Duplicate
from ferryman.sources import Jobs


def mint(doc: Document) -> Document:
    """A primary id from the object's local id; a local id from what the file says."""
    word = doc.text().strip()
    if word.startswith("two ids"):
        doc["primary_id"] = f"ark:/9/{doc['path']}"
    elif not doc.get("primary_id"):
        doc["primary_id"] = f"ark:/9/{doc.get('local_id')}"
    if word.startswith("alias"):
        doc["local_id"] = word.split()
    if word.startswith("bad"):
        doc["primary_id"] = "a\nb"
    return doc


def minting_into(database: Path) -> Plan:
    """Jobs whose documents get identifiers, and then rows."""
    plan = Plan("minting", version=1)
    ids = plan.source("jobs", Jobs()).step("mint", mint).route("both", Duplicate())
    ids.destination("ids", JobIdentifiers())
    ids.destination("index", Sql(f"sqlite:///{database}", table="documents", mode="append"))
    return plan
