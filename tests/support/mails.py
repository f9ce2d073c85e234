"""Mails for tests, and what a scan of a source of mail yields."""

from __future__ import annotations

from collections.abc import Iterable
from email.message import EmailMessage
from typing import Any

from ferryman.document import Document
from ferryman.sources import Bookmark, Fetched, Listed, Note, Source

LINE = "From ann@example.org Mon May  6 10:00:00 2024\n"


def mail(number: int | str, text: str = "Text", **headers: str) -> bytes:
    """Return a mail, with the line ends of a file."""
    message = EmailMessage()
    message["Message-ID"] = f"<{number}@example.org>"
    message["From"], message["To"], message["Subject"] = "ann@example.org", "bob@example.org", f"Mail {number}"
    message["Date"] = "Mon, 06 May 2024 10:00:00 +0200"
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    message.set_content(text)
    return message.as_bytes()


def mbox(*mails: bytes) -> bytes:
    return b"".join(LINE.encode() + each.replace(b"\nFrom ", b"\n>From ") + b"\n" for each in mails)


class Scanned:
    """What one scan has listed.

    Attributes:
        listed: in their order.
        marks: bookmarks for the next scan.
        error: with which the listing ended, or None.
    """

    def __init__(self, source: Source, before: dict[str, Any] | Scanned | None = None) -> None:
        marks = before.marks if isinstance(before, Scanned) else before or {}
        self.listed: list[Listed] = []
        self.marks: dict[str, Any] = dict(marks)
        self.error: Exception | None = None
        self.notes: list[str] = []
        self.changed: list[str] = []
        self._source = source
        for partition in source.partitions_after(marks):
            try:
                self._add(source.listing(partition))
            except Exception as e:
                self.error = e
        self.marks = {key: value for key, value in self.marks.items() if value is not None}

    def _add(self, entries: Iterable[Any]) -> None:
        for entry in entries:
            if isinstance(entry, Bookmark):
                self.marks[entry.partition] = entry.value
                self.changed.append(entry.partition)
            elif isinstance(entry, Note):
                self.notes.append(entry.text)
            else:
                assert isinstance(entry, Listed)
                self.listed.append(entry)

    def ids(self) -> list[str]:
        return [entry.id for entry in self.listed]

    def fingerprints(self) -> dict[str, str]:
        return {entry.id: entry.fingerprint for entry in self.listed}

    def documents(self) -> list[Document]:
        found = []
        for entry in self.listed:
            answer = self._source.read(entry)
            assert isinstance(answer, Fetched)
            assert answer.fingerprint == entry.fingerprint
            found.append(answer.document)
        return found

    def folders(self) -> dict[str, list[str]]:
        """Number of a mail, as in its Message-ID, -> folders."""
        return {doc["message_id"].partition("@")[0]: doc["folders"] for doc in self.documents()}
