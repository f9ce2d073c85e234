"""Pictures and programs among texts: rejected by name, or dropped where the source says so (``unsupported="skip"``)."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, Plan
from ferryman.errors import Unsupported, UsageError
from ferryman.sources import Files
from ferryman.steps import extract_text
from tests.support.plan_world import run_plan
from tests.support.recorder import Recorder

PNG = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + bytes(range(256))
MAIL = b"""From: a@example.com
To: b@example.com
Subject: signed
Date: Mon, 01 Jan 2024 00:00:00 +0000
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary=x

--x
Content-Type: text/plain

The text of the mail.
--x
Content-Type: image/png
Content-Disposition: attachment; filename=logo.png
Content-Transfer-Encoding: base64

iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ
--x--
"""


def to_text(doc: Document) -> Document:
    doc["text"] = doc.text()
    return doc


def lines(doc: Document) -> Iterator[Document]:
    for number, line in enumerate(doc.text().splitlines()):
        yield doc.child(number, raw=line.encode())


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("a text")
    (folder / "logo.png").write_bytes(PNG)
    (folder / "manual.txt.gz").write_bytes(gzip.compress(b"a packed text"))
    return folder


def summary_of(corpus: Path, step: Any, **options: Any) -> Any:
    plan = Plan("texts", version=1)
    made = plan.source("files", Files(corpus, **options)).step("text", step)
    made.destination("out", Recorder(corpus.parent / "out"))
    return run_plan(plan, corpus.parent / "state")


@pytest.mark.rule("source.unsupported")
@pytest.mark.parametrize("step", [to_text, lines, extract_text()], ids=["text()", "a generator", "extract_text"])
def test_what_no_step_reads_is_rejected(corpus: Path, step: Any) -> None:
    """By its name; compressed texts are texts."""
    summary = summary_of(corpus, step)
    assert (summary.delivered, summary.rejected, summary.dropped) == (2, 1, 0)


@pytest.mark.rule("source.unsupported")
@pytest.mark.parametrize("step", [to_text, lines, extract_text()], ids=["text()", "a generator", "extract_text"])
def test_what_is_skipped_ends_as_dropped(corpus: Path, step: Any) -> None:
    """So a folder with a picture ends a run with 0."""
    summary = summary_of(corpus, step, unsupported="skip")
    assert (summary.delivered, summary.rejected, summary.dropped, summary.pending) == (2, 0, 1, 0)


def test_attachments_too(tmp_path: Path) -> None:
    """A mail with a picture in its signature is one mail."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "signed.eml").write_bytes(MAIL)
    summary = summary_of(corpus, extract_text(), unsupported="skip")
    assert (summary.delivered, summary.rejected, summary.dropped) == (1, 0, 1)


def test_a_broken_text_is_still_rejected(corpus: Path) -> None:
    """In another encoding, or cut: that is not a kind."""
    (corpus / "latin.txt").write_bytes("Ça va".encode("latin-1"))
    (corpus / "wide.txt").write_bytes("wide".encode("utf-16"))
    summary = summary_of(corpus, to_text, unsupported="skip")
    assert (summary.delivered, summary.rejected, summary.dropped) == (2, 2, 1)


def test_the_message_names_the_cure() -> None:
    """What it is, and how to have it dropped."""
    with pytest.raises(Unsupported, match=r"PNG picture.*Files\(unsupported='skip'\)"):
        extract_text()(Document("logo.png", raw=PNG))


def test_packed_files_are_left_as_they_are_on_request(corpus: Path) -> None:
    """Then they are of a kind that is not read."""
    assert summary_of(corpus, extract_text(), decompress=False).rejected == 2


def test_another_word_is_refused() -> None:
    """When the source is made."""
    with pytest.raises(UsageError, match="give 'reject' or 'skip'"):
        Files("corpus", unsupported="ignore")  # type: ignore[arg-type]
