"""A file a document."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import sqlalchemy as sa

from ferryman import places
from ferryman.destinations.base import Delivery, Destination, DestinationContext, Effect, Facts, Outcome
from ferryman.destinations.directory.names import NAME_BYTES, PATH_BYTES
from ferryman.destinations.directory.writer import DOCUMENTS, INDEX, Body, Shelf
from ferryman.destinations.payload import payload, shown_id
from ferryman.destinations.sequences import compare
from ferryman.destinations.sql.sqlite import SQLite, database
from ferryman.document import encode_fields
from ferryman.errors import BadDocument, Misconfigured, PlanError
from ferryman.storage import files
from ferryman.storage.folder import explained

Content = Literal["raw", "json"]
By = Literal["id", "content"]


class Directory(Destination):
    """Keeps a file a document in a folder: ``Directory("out")`` puts ``histories/henryv.txt`` where its id says.

    **Content.** ``content="raw"``: the raw bytes as they are; of a document without any, its fields as a JSON object.
    ``content="json"``: the object that ``JsonLines`` writes, with fields, text, hash and sequence, and ``.json`` behind
    the name.

    **Names.** The id is the path; what is percent-encoded in it is decoded, so that files from ``Files`` get their own
    names back. Characters that some file system refuses are percent-encoded, and names that lead elsewhere (``..``)
    too. Where a name is too long, or another id has it (``a`` and ``a/b``; ``A`` and ``a``, which not every file system
    tells apart), the file is in the top folder with a name that ends in ``~`` and a hash of the id. An id keeps its
    name. A file that was there before is not touched: the document that asks for its name is refused.

    **Archive.** ``by="content"`` keeps raw bytes under their own hash, ``sha256/ab/cd/abcd…``: equal content once,
    never changed and never removed; ``sha256sum`` verifies it. The index tells which id has which.

    **The index**, ``.ferryman/index.db`` (SQLite), has id, path, sequence and delivery hash of every document, deletes
    included. So an older version never replaces a newer one, and does not come back after its delete. Do not remove it:
    files would be taken for somebody else's. ``SELECT id, path FROM documents WHERE operation = 'upsert'`` lists all.

    A file appears whole, under its name, or not at all, and is durable before it is confirmed. A kill between file and
    index leaves a newer file than the index says; it is sent again, which changes nothing. So it is
    at-least-once, and what is there in the end is right; in the second after a kill, an older version of just that
    document may be there. One writer at a time, on the machine of the folder: SQLite's locks do not hold on network
    file systems.

    Raises:
        PlanError: when it is made: an argument that cannot be meant.
    """

    effect = Effect.IDEMPOTENT
    single_writer = True
    compares_sequences = True
    keyed_by_id = True

    facts: ClassVar[Facts] = Facts(
        stored="a file a document; its index has the hash and sequence of each document, and of each delete",
        limits=(f"a name of more than {NAME_BYTES} bytes, or a path of more than {PATH_BYTES}, is made up",),
        outcomes=(
            ("no room, a disk in trouble", "transient, about all"),
            ("no right to write", "permanent, about all"),
            ("a file of this name was there before", "permanent"),
        ),
    )

    def __init__(self, directory: str | Path, content: Content = "raw", by: By = "id") -> None:
        """``directory`` is made if it is not there. A relative one is meant from the plan file's
        folder; in a program, from the current one."""
        self.directory = Path(places.absolute(directory))
        self.content: Content = content
        self.by: By = by
        self._engine: sa.Engine | None = None
        findings = []
        if content not in get_args(Content):
            findings.append(f"content={content!r}: use 'raw' or 'json'")
        if by not in get_args(By):
            findings.append(f"by={by!r}: use 'id' or 'content'")
        if by == "content" and content == "json":
            findings.append("by='content' keeps raw bytes: leave content= out")
        if findings:
            raise PlanError([f"Directory({str(directory)!r}): {finding}" for finding in findings])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_engine": None}

    def target(self) -> str:
        return self.directory.as_uri()

    def local_paths(self) -> tuple[str, ...]:
        return (str(self.directory),)

    def check(self) -> None:
        """Make the folder and its index, and clean up after killed writers.

        Raises:
            TransientError: no room, or somebody holds the index for too long.
            PermanentError: no right to write here.
        """
        with explained(self.directory), SQLite().explained(self.target()):
            files.make_folder(self.directory / INDEX / "new")
            engine = self._index()
            database.prepare(engine)
            with engine.connect() as connection, connection.begin():  # no writer is at work
                DOCUMENTS.create(connection, checkfirst=True)
                for left in (self.directory / INDEX / "new").iterdir():
                    left.unlink(missing_ok=True)

    def highest_sequence(self) -> int | None:
        """Of files and deletes."""
        taken = sa.select(sa.func.max(DOCUMENTS.c.sequence)).where(DOCUMENTS.c.operation != "new")
        engine = self._index()
        with explained(self.directory), SQLite().explained(self.target()), engine.connect() as connection:
            found: int | None = connection.scalar(taken)
        engine.dispose()
        return found

    def open(self, context: DestinationContext) -> None:
        self._engine = self._index()

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """1. reserve names 2. write files 3. put them under their names, remove others 4. note it in the index.

        Raises:
            Unavailable: no room, or a disk in trouble.
            Misconfigured: no right to write here.
        """
        if self._engine is None:
            raise Misconfigured(f"{self.target()}: write before open")
        outcomes: dict[int, Outcome] = {}
        bodies = dict(self._bodies(chunk, outcomes))
        with explained(self.directory), SQLite().explained(self.target()), self._engine.connect() as connection:
            shelf = Shelf(self.directory, connection)
            with connection.begin():  # a name is ours, durably, before there is a file of that name
                refused = shelf.reserve({chunk[i].id: body for i, body in bodies.items()})  # 1
            for position in [i for i in bodies if chunk[i].id in refused]:
                outcomes[position] = Outcome.permanent(refused[chunk[position].id])
                del bodies[position]
            deliveries = {position: chunk[position] for position in bodies}
            with connection.begin():
                compared, winners = compare(list(deliveries.values()), shelf.known({d.id for d in deliveries.values()}))
                body_of = {delivery.hash: bodies[position] for position, delivery in deliveries.items()}
                won = [(delivery, body_of[delivery.hash]) for delivery in winners.values()]
                shelf.put({delivery.id: body for delivery, body in won})  # 2, 3
                shelf.note(won)  # 4
        outcomes |= dict(zip(deliveries, compared, strict=True))
        return [outcomes[position] for position in range(len(chunk))]

    def _bodies(self, chunk: list[Delivery], outcomes: dict[int, Outcome]) -> Iterator[tuple[int, Body]]:
        """What each delivery puts into the directory, by its position; the others get an outcome."""
        for position, delivery in enumerate(chunk):
            try:
                delivery.id.encode()
                yield position, self._body(delivery)
            except (BadDocument, ValueError, TypeError) as e:
                outcomes[position] = Outcome.permanent(f"{shown_id(delivery)}: {e}")

    def _body(self, delivery: Delivery) -> Body:
        suffix = ".json" if self.content == "json" else ""
        if delivery.operation == "delete":
            return Body(None, suffix, self.by == "content")
        if self.by == "content":
            if delivery.raw is None:
                raise BadDocument("it has no raw bytes to archive. Leave such documents out with a router.")
            digest = sha256(delivery.raw).hexdigest()
            return Body(delivery.raw, by_content=True, content=f"sha256/{digest[:2]}/{digest[2:4]}/{digest}")
        if self.content == "json":
            return Body(payload(delivery) + b"\n", suffix)
        return Body(encode_fields(delivery.fields) + b"\n" if delivery.raw is None else delivery.raw)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()

    def _index(self) -> sa.Engine:
        return database.engine(sa.make_url("sqlite://").set(database=str(self.directory / INDEX / "index.db")))
