"""Formats: detection of the kind of content, and readers of text, with a module for each family of formats.

A reader works on bytes in memory and loads its library when it is called. It raises ``Unreadable``, which says why and
what to do, and which ``extract_text`` converts to the document's error. Other exceptions of a library mean that the
content is broken.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from io import BytesIO
from typing import Any, Final, NamedTuple

from ferryman.errors import DeliveryError
from ferryman.net.mailboxes import MAILBOX_LINE
from ferryman.steps.formats.charsets import decode, is_narrow_text, wide_encoding

# Results of readers: text, fields, and parts that become documents of their own.

_CONTROL: Final = bytes({*range(0x20), 0x7F} - set(b"\t\n\f\r"))
_NO_CHARACTERS: Final = "\ufffe\uffff"
"""Characters that no text has and that many destinations refuse."""

_NEWLINES: Final = ("\r\n", "\r", "\u2028", "\x85")
_PAGES: Final = ("\f", "\u2029")
_GAP: Final = re.compile("\n{3,}")
_DATE: Final = re.compile(r"\d{4}(-\d\d(-\d\d)?)?")


class Unreadable(Exception):
    """Content cannot be read; the message says why, and what to do."""


class Attachment(NamedTuple):
    """An attachment, which becomes a document of its own."""

    name: str
    """File name, or "" where there is none."""
    raw: bytes
    type: str = ""
    """MIME type given from outside; "" where there is none."""
    charset: str = ""
    """Character encoding given from outside; "" where there is none."""


@dataclass(slots=True)
class Content:
    """Text that was read, with paragraphs separated by a blank line, and facts about it.

    Attributes:
        fields: title, author, created, modified, language, pages, …, as far as known, as JSON values.
        verbatim: whether the text's white space has a meaning.
        outline: level, from 1, and first line of each heading in the text, in their order, where it has no marks there.
    """

    text: str
    fields: dict[str, Any] = field(default_factory=dict)
    parts: list[Attachment] = field(default_factory=list)
    verbatim: bool = False
    outline: list[tuple[int, str]] = field(default_factory=list)


class Unread(dict[str, None]):
    """Names of what a document has and a reader leaves out, for the field ``unread``; each once, in order."""

    def add(self, what: str) -> None:
        self[what] = None

    @property
    def fields(self) -> dict[str, Any]:
        return {"unread": list(self)} if self else {}


def clean(text: str, verbatim: bool = False) -> str:
    """Clean text so that every destination accepts it: no control characters, no lone surrogates, uniform line ends.

    Unless the text is ``verbatim``, blanks at the ends of lines and all but one of several blank lines are removed.
    """
    for newline in _NEWLINES:
        text = text.replace(newline, "\n")  # faster than a pattern, because most texts have none of them
    text = text.encode("utf-8", "replace").translate(None, _CONTROL).decode()
    for none in _NO_CHARACTERS:
        text = text.replace(none, "")
    if not verbatim:
        for page in _PAGES:
            text = text.replace(page, "\n\n")
        text = "\n".join(map(str.rstrip, text.split("\n")))
        if "\n\n\n" in text:
            text = _GAP.sub("\n\n", text)
        text = text.strip("\n ")  # a tab may stand after the first cell of a table, which is empty
    return text


def one_line(text: str | None) -> str:
    """Return a text as one line, for a field; "" for nothing."""
    return " ".join(clean(text).split()) if text else ""


def iso_date(text: str | None) -> str:
    """Return a date as ISO 8601 if it is one, else ""; UTC ends in Z; a date without time zone stays without."""
    text = one_line(text)
    if _DATE.fullmatch(text):
        return text
    try:
        return format_time(datetime.fromisoformat(text))
    except ValueError:
        return ""


def format_time(when: datetime) -> str:
    """Format a time as ISO 8601 with whole seconds; UTC as Z."""
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")


# Kinds of content, detected by the bytes, with the name's ending as a hint where these do not tell.


class ContentKind(NamedTuple):
    """A kind of content.

    Attributes:
        type: its MIME type.
        label: name in messages.
        reader: module and function below ``formats``; "" for a kind that is recognised but not read.
        advice: what to do if it is not read.
        locked: whether it is encrypted content of a kind that is read.
    """

    type: str
    label: str
    reader: str = ""
    advice: str = ""
    locked: bool = False


_OFFICE: Final = "application/vnd.openxmlformats-officedocument."
_ODF: Final = "application/vnd.oasis.opendocument."

PDF: Final = ContentKind("application/pdf", "PDF", "pdf.pdf")
DOCX: Final = ContentKind(_OFFICE + "wordprocessingml.document", "DOCX", "office.docx")
PPTX: Final = ContentKind(_OFFICE + "presentationml.presentation", "PPTX", "office.pptx")
XLSX: Final = ContentKind(_OFFICE + "spreadsheetml.sheet", "XLSX", "spreadsheets.xlsx")
XLSB: Final = ContentKind("application/vnd.ms-excel.sheet.binary.macroenabled.12", "XLSB", "spreadsheets.xlsb")
XLS: Final = ContentKind("application/vnd.ms-excel", "XLS", "spreadsheets.xls")
ODT: Final = ContentKind(_ODF + "text", "ODT", "office.odf")
ODP: Final = ContentKind(_ODF + "presentation", "ODP", "office.odf")
ODS: Final = ContentKind(_ODF + "spreadsheet", "ODS", "office.odf")
EPUB: Final = ContentKind("application/epub+zip", "EPUB", "markup.epub")
HTML: Final = ContentKind("text/html", "HTML", "markup.html")
XML: Final = ContentKind("application/xml", "XML", "markup.xml")
RTF: Final = ContentKind("application/rtf", "RTF", "rtf.rtf")
MARKDOWN: Final = ContentKind("text/markdown", "Markdown", "plain.markdown")
MAIL: Final = ContentKind("message/rfc822", "e-mail", "mail.mail")
MBOX: Final = ContentKind("application/mbox", "mailbox", "mail.mbox")
MSG: Final = ContentKind("application/vnd.ms-outlook", "Outlook message", "mail.msg")
TNEF: Final = ContentKind("application/vnd.ms-tnef", "Outlook attachment (winmail.dat)", "mail.tnef")
TROFF: Final = ContentKind("text/troff", "a manual page", "troff.troff")
PLAIN: Final = ContentKind("text/plain", "plain text", "plain.plain")

READ: Final = (
    *(
        PDF,
        DOCX,
        PPTX,
        XLSX,
        XLSB,
        XLS,
        ODT,
        ODP,
        ODS,
        EPUB,
        HTML,
        XML,
        RTF,
        MARKDOWN,
        MAIL,
        MBOX,
        MSG,
        TNEF,
        TROFF,
        PLAIN,
    ),
)
"""Kinds that are read."""

DECODED: Final = frozenset({HTML, XML, MARKDOWN, TROFF, PLAIN})
"""Kinds of text, whose readers take the name of the declared encoding as their second argument."""

ZIP: Final = ContentKind("application/zip", "a zip archive", advice="Unpack it with steps.unpack() before")
TAR: Final = ContentKind("application/x-tar", "a tar archive", advice="Unpack it with steps.unpack() before")
UNKNOWN: Final = ContentKind("application/octet-stream", "binary data of an unknown kind")
_LOCKED: Final = ContentKind(
    "application/x-ole-storage", "an encrypted Office file", advice="Save it without a password", locked=True
)
_OLD: Final = "Save it in the newer format (DOCX, PPTX)"
_DOC: Final = ContentKind("application/msword", "a Word file of before 2007", advice=_OLD)
_PPT: Final = ContentKind("application/vnd.ms-powerpoint", "a PowerPoint file of before 2007", advice=_OLD)
_OLE: Final = ContentKind("application/x-ole-storage", "a file of an older Office program", advice=_OLD)
_IWORK: Final = ContentKind("application/vnd.apple.iwork", "an Apple iWork document", advice="Export it as PDF")

_ZIP_MAGIC: Final = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
"""First bytes of a zip with members, of an empty one, of a part of several."""

_OLE_MAGIC: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_STREAMS: Final = (
    ("EncryptedPackage", _LOCKED),
    ("WordDocument", _DOC),
    ("PowerPoint Document", _PPT),
    ("Workbook", XLS),
    ("WORKBOOK", XLS),
    ("Book", XLS),
)
"""Streams of Office files from before 2007, and of encrypted ones from later."""

_OUTLOOK_STREAM: Final = "__substg1.0_"
"""Beginning of the names of an Outlook message's streams, one for each property."""

_MAIN_TYPE: Final = re.compile(rb"application/vnd\.([a-z.-]{1,100})\.main\b")
"""Content type of the main part of an Office package, in lower case."""
_APPLICATIONS: Final = (
    (b"wordprocessingml", DOCX),
    (b"ms-word", DOCX),
    (b"presentationml", PPTX),
    (b"ms-powerpoint", PPTX),
    (b"excel.sheet.binary", XLSB),
    (b"spreadsheetml", XLSX),
    (b"ms-excel", XLSX),
    (b"ms-visio", ContentKind("application/vnd.ms-visio.drawing", "a Visio drawing", advice="Export it as PDF")),
)
_MAIN_PARTS: Final = (
    ("xl/workbook.bin", XLSB),
    ("xl/workbook.xml", XLSX),
    ("ppt/presentation.xml", PPTX),
    ("index/document.iwa", _IWORK),
    ("index.zip", _IWORK),
)
"""Parts that tell the kind of a package that states no content type."""
_TYPES_PART: Final = "[content_types].xml"
_TYPES_BYTES: Final = 8 << 20
"""Longest list of content types that is inspected: an Office file has some thousand parts at most."""

_ODF_VARIANTS: Final = ("-web", "-master")
"""Endings of the types of a text that was a web page, and of one made of others."""

_PACKAGES: Final = (DOCX, PPTX, XLSX, XLSB, ODT, ODP, ODS, EPUB)
_UNPACK: Final = "If it is a compressed tar archive, unpack it with steps.unpack() before"
_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", ContentKind("image/png", "a PNG picture")),
    (b"\xff\xd8\xff", ContentKind("image/jpeg", "a JPEG picture")),
    (b"GIF8", ContentKind("image/gif", "a GIF picture")),
    (b"II*\0", ContentKind("image/tiff", "a TIFF picture")),
    (b"MM\0*", ContentKind("image/tiff", "a TIFF picture")),
    (b"\x1f\x8b", ContentKind("application/gzip", "gzip-compressed data", advice=_UNPACK)),
    (b"BZh", ContentKind("application/x-bzip2", "bzip2-compressed data", advice=_UNPACK)),
    (b"\xfd7zXZ\0", ContentKind("application/x-xz", "xz-compressed data", advice=_UNPACK)),
    (b"\x28\xb5\x2f\xfd", ContentKind("application/zstd", "zstd-compressed data", advice=_UNPACK)),
    (b"7z\xbc\xaf\x27\x1c", ContentKind("application/x-7z-compressed", "a 7z archive")),
    (b"Rar!\x1a\x07", ContentKind("application/vnd.rar", "a rar archive")),
    (b"\x7fELF", ContentKind("application/x-elf", "a program")),
    (b"MZ", ContentKind("application/vnd.microsoft.portable-executable", "a Windows program")),
    (b"ID3", ContentKind("audio/mpeg", "an MP3 recording")),
    (b"OggS", ContentKind("audio/ogg", "an Ogg recording")),
    (b"fLaC", ContentKind("audio/flac", "a FLAC recording")),
    (b"SQLite format 3\0", ContentKind("application/vnd.sqlite3", "an SQLite database")),
    (b"PAR1", ContentKind("application/vnd.apache.parquet", "a Parquet file")),
    (b"\x78\x9f\x3e\x22", TNEF),
)
"""First bytes of content that most of the time is not a document, so that a message can name it."""

_BY_ENDING: Final = {
    "md": MARKDOWN,
    "markdown": MARKDOWN,
    "html": HTML,
    "htm": HTML,
    "xhtml": HTML,
    "xml": XML,
    "eml": MAIL,
    "mht": MAIL,
    "mhtml": MAIL,
    "txt": PLAIN,
}
"""Hints for content that is text."""

_HEAD_BYTES: Final = 4096
"""First bytes inspected to detect the kind of a text."""

_PDF_MAGIC: Final = b"%PDF-"
_PDF_BYTES: Final = 1024
"""First bytes that must contain the mark of a PDF, which its readers do not demand at the very beginning."""
_PDF_OBJECT: Final = re.compile(rb"(?<!\d)\d{1,10}[ \t\r\n\f\0]{1,9}\d{1,5}[ \t\r\n\f\0]{1,9}obj\b")
"""Beginning of an object, of which every PDF has some. A text that only mentions the mark has none."""

_RTF_MAGIC: Final = b"{\\rtf"
_RTF: Final = re.compile(rb"\{\\rtf\d{0,3}\s*+[\\{]")
_ENDS_BYTES: Final = 64
"""Last bytes of an RTF file that must contain its closing brace; NULs and blanks may follow it."""

_TAR_MAGIC: Final = slice(257, 262)
_TAR_HEADER: Final = slice(0, 512)

_HTML: Final = re.compile(
    rb"(?:\s++|<!--.*?-->|<\?xml[^>]*+>)*+<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL
)
_HEADER: Final = re.compile(
    rb"(?:From|To|Received|Return-Path|Message-ID|MIME-Version|Date|Subject|Delivered-To|X-[\w-]+|Content-Type):",
    re.IGNORECASE,
)
_HEADERS: Final = 3
"""Number of a mail's own headers among the first lines that make it a mail, whatever its name."""

_UTF8_BOM: Final = b"\xef\xbb\xbf"
_WIDE_BOMS: Final = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")
_LEADING_NULS: Final = re.compile(rb"\0*+")
"""NULs before a log's first line, where a rotation has cut it while it was written."""


_PACKED: Final = (".gz", ".bz2", ".xz", ".zst")
"""Endings that a source may have left in the name of what it has unpacked."""

_TROFF_ENDING: Final = re.compile(r"\d[a-z]{0,8}|man|mdoc|ms|me|mom|troff|roff|t|tr")
_MANUAL: Final = re.compile(
    rb"(?:(?:[.'](?:\\?[\"#][^\n]*+|[ \t\r]*+))?+\r?+\n)*+"
    rb"[.'][ \t]*(?:TH[ \t]+\S|Dd\b|Dt[ \t]+\S|so[ \t]+\S+\s*\Z)"
)
"""Beginning of a manual page, after its comments."""
_REQUEST: Final = re.compile(
    rb"^[.'][ \t]*(?:TH|Dd|Dt|SH|Sh|TL|NH|PP|LP|IP|de|ds|nr|if|ie|so)(?:[ \t]+\S|[ \t]*\r?$)", re.MULTILINE
)


def kind_of(raw: bytes, name: str = "") -> ContentKind:
    """Return the kind of content.

    Args:
        name: a file's name or path, for its ending.
    """
    name = name.lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    head, ending = raw[:_HEAD_BYTES], name.rpartition(".")[2]
    if _is_pdf(raw, ending):
        return PDF
    if head.startswith(_ZIP_MAGIC):
        return _zip_kind(raw, ending)
    if head.startswith(_OLE_MAGIC):
        return _ole_kind(raw, ending)
    if _is_rtf(raw, ending):
        return RTF
    for magic, kind in _MAGIC:  # those of letters and digits may begin a text, too
        if head.startswith(magic) and not (magic.isalnum() and is_narrow_text(head)):
            return kind
    if head[_TAR_MAGIC] == b"ustar" and b"\0" in head[_TAR_HEADER]:
        return TAR
    if MAILBOX_LINE.match(head):
        is_mailbox = ending in ("mbox", "mbx") or MAILBOX_LINE.search(raw, 1)
        return MBOX if is_mailbox else MAIL
    text = _text_head(raw)
    return UNKNOWN if text is None else _text_kind(text, ending)


def _is_pdf(raw: bytes, ending: str) -> bool:
    """Return whether content is a PDF, and not a text about PDFs: the mark can be typed."""
    at = raw.find(_PDF_MAGIC, 0, _PDF_BYTES)
    if at < 0:
        return False
    before = raw[:at]
    if not before.removeprefix(_UTF8_BOM).strip():
        return ending == "pdf" or not is_narrow_text(raw[:_HEAD_BYTES]) or _PDF_OBJECT.search(raw) is not None
    if ending in _BY_ENDING or (is_narrow_text(before) and not before.endswith((b"\n", b"\r"))):
        return False
    return _PDF_OBJECT.search(raw) is not None


def _is_rtf(raw: bytes, ending: str) -> bool:
    """Return whether content is RTF, and not a text about RTF."""
    head = raw[:_HEAD_BYTES].removeprefix(_UTF8_BOM).lstrip()
    if not head.startswith(_RTF_MAGIC):
        return False
    is_closed = raw[-_ENDS_BYTES:].rstrip(b"\0 \t\r\n\x1a").endswith(b"}")
    return is_closed or ending == "rtf" or (ending not in _BY_ENDING and _RTF.match(head) is not None)


def _text_head(raw: bytes) -> bytes | None:
    """Return the first bytes of a text, as UTF-8 if it is in UTF-16 or UTF-32; None if it is not text."""
    head = raw[:_HEAD_BYTES]
    if b"\0" not in head:
        return head.removeprefix(_UTF8_BOM)
    if head.startswith(_WIDE_BOMS) or wide_encoding(head):
        return decode(head).text.encode("utf-8", "replace")
    start = _LEADING_NULS.match(raw).end()  # type: ignore[union-attr]
    head = raw[start : start + _HEAD_BYTES]
    return head if is_narrow_text(head) else None


def _text_kind(head: bytes, ending: str) -> ContentKind:
    if _HTML.match(head):
        return HTML
    hint = _BY_ENDING.get(ending)
    if hint is not None:
        return hint
    if _MANUAL.match(head) or (head[:1] in b".'" and _TROFF_ENDING.fullmatch(ending) and _REQUEST.search(head)):
        return TROFF
    if head.lstrip().startswith(b"<?xml"):
        return XML
    lines = head.split(b"\n\n" if b"\r\n\r\n" not in head else b"\r\n\r\n")[0].splitlines()
    if sum(1 for line in lines if _HEADER.match(line)) >= _HEADERS and _HEADER.match(lines[0]):
        return MAIL
    return PLAIN


def _zip_kind(raw: bytes, ending: str) -> ContentKind:
    """Return the kind of a zip by its members: a package states its type, or has the parts of one."""
    try:
        archive = zipfile.ZipFile(BytesIO(raw))
        names = archive.NameToInfo
        if "mimetype" in names and archive.getinfo("mimetype").file_size < _HEAD_BYTES:
            declared = archive.read("mimetype").strip().decode("ascii", "replace").removesuffix("-template")
            for kind in (ODT, ODP, ODS, EPUB):
                if declared in (kind.type, *(kind.type + variant for variant in _ODF_VARIANTS)):
                    return kind
            if declared.startswith(_ODF):
                return ContentKind(declared, "an OpenDocument drawing or formula", advice="Export it as PDF")
    except DeliveryError:  # the step's time is up
        raise
    except Exception:  # there is hardly one that a damaged archive does not raise
        return _torn_zip_kind(raw, ending)
    return _package_kind(archive) or ZIP


def _package_kind(archive: zipfile.ZipFile) -> ContentKind | None:
    """Return the kind of an Office package by the content type of its main part, which may be in any folder.

    The names of parts are compared as Office does: without regard to case; some programs write backslashes.
    """
    parts = {info.filename.replace("\\", "/").lstrip("/").lower(): info for info in archive.infolist()}
    types = parts.get(_TYPES_PART)
    for application in _MAIN_TYPE.findall(_content_types(archive, types)):
        for mark, kind in _APPLICATIONS:
            if mark in application:
                return kind
    for part, kind in _MAIN_PARTS:
        if part in parts:
            return kind
    return DOCX if types is not None and any(name.startswith("word/") for name in parts) else None


def _content_types(archive: zipfile.ZipFile, part: zipfile.ZipInfo | None) -> bytes:
    """Return the list of content types in lower case, without the zeros of UTF-16; b"" if it cannot be read."""
    if part is None or part.file_size > _TYPES_BYTES:
        return b""
    try:
        return archive.read(part).replace(b"\0", b"").lower()
    except DeliveryError:  # the step's time is up
        raise
    except Exception:  # damaged, or encrypted
        return b""


def _torn_zip_kind(raw: bytes, ending: str) -> ContentKind:
    """Return the kind of a zip that breaks off, and so lacks a directory: by its first members, else by its name."""
    for kind in (ODT, ODP, ODS, EPUB):
        if f"mimetype{kind.type}".encode() in raw[:_HEAD_BYTES]:
            return kind
    for kind, part in ((DOCX, b"word/"), (XLSX, b"xl/"), (PPTX, b"ppt/")):
        if part in raw:
            return kind
    return next((kind for kind in _PACKAGES if kind.label.lower() == ending), ZIP)


def _ole_kind(raw: bytes, ending: str) -> ContentKind:
    """Return the kind of an OLE file by the names of its streams, in UTF-16; if it embeds others, also by its name."""
    if _OUTLOOK_STREAM.encode("utf-16-le") in raw and ending not in ("doc", "ppt", "xls"):
        return MSG
    kinds = [kind for stream, kind in _STREAMS if stream.encode("utf-16-le") in raw]
    if not kinds:
        return MSG if ending in ("msg", "oft") else _OLE
    return XLS if XLS in kinds and ending == "xls" and kinds[0] != _LOCKED else kinds[0]


def load_reader(name: str) -> Callable[..., Content]:
    """Return the reader of this name, which is loaded now: most runs need few of them."""
    module, function = name.split(".")
    reader: Callable[..., Content] = getattr(import_module(f"ferryman.steps.formats.{module}"), function)
    return reader
