"""Manifests: lists of URLs, as CSV with a header, as JSON lines or as Checkm, each with an optional digest, size and
local id."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from ferryman.document import decode_json
from ferryman.errors import plain_text
from ferryman.intake.service.errors import CorruptSubmission
from ferryman.limits import KIB, MIB
from ferryman.net.archives import leads_outside
from ferryman.net.urls import redact, split

MANIFEST_BYTES: Final = 64 * MIB
MANIFEST_LINES: Final = 100_000
MANIFEST_VALUES: Final = 1_000_000
"""Maximum number of values in a manifest, which is held in memory: a line takes a kilobyte, each further field a tenth
of that. Bytes are no measure, since a line may consist of two, and a JSON value of three."""

ROW_CHARS: Final = MIB
"""Maximum characters of a row; decoded, it may take thirty times as much memory."""

PATH_CHARS: Final = 1024
NAME_BYTES: Final = 255
"""Maximum bytes of a name in a path, which file systems limit."""
NUMBER_BYTES: Final = 10
"""Bytes reserved in a name for the number that is added if several files have the same name."""
SUFFIX_BYTES: Final = 32
"""Maximum bytes of a suffix; anything longer does not reveal a kind of file."""

SCHEMES: Final = ("http", "https", "file")
DIGESTS: Final[Mapping[str, int]] = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}
"""Supported digests -> their number of hex digits."""

_COLUMNS: Final = ("url", "digest", "size", "local_id", "primary_id", "file_name", "priority", "profile_name")
_ALIASES: Final = {"localid": "local_id", "primaryid": "primary_id", "filename": "file_name", "name": "file_name"}
_NOT_IN_NAMES: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class ManifestEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file named by a submitter."""

    url: str
    path: str
    """Path among the files of its object."""
    digest: str = ""
    """``sha256:HEX``; "" if the submitter gave none."""
    size: int | None = None
    fields: dict[str, Any] = {}
    """All other fields that the manifest has for it."""


class ManifestRow(NamedTuple):
    """A line of a manifest."""

    line: int
    entry: ManifestEntry
    local_id: str
    primary_id: str
    priority: int | None
    collection: str


class ManifestObject(NamedTuple):
    """An object that becomes one job: all lines with the same local id, or a single line without one."""

    key: str
    """Key that is the same whenever the manifest is read."""
    rows: list[ManifestRow]


def parse_manifest(text: bytes, base: str) -> list[ManifestRow]:
    """Parse the lines of a manifest. URLs may be relative to ``base``, the manifest's own URL.

    Raises:
        CorruptSubmission: it cannot be parsed; names the line.
    """
    rows: list[ManifestRow] = []
    total_values = 0
    try:
        for number, values in _parser_of(text)(text):
            row = _parse_row(number, values, base)
            total_values += _count_values(row.entry.fields)
            if len(rows) == MANIFEST_LINES:
                raise CorruptSubmission(f"the manifest has more than {MANIFEST_LINES} lines. Split it into several.")
            if total_values > MANIFEST_VALUES:
                raise CorruptSubmission(f"the manifest has more than {MANIFEST_VALUES} fields. Split it into several.")
            rows.append(row)
    except UnicodeDecodeError:
        raise CorruptSubmission(
            f"the manifest is not UTF-8 at byte {_first_bad_byte(text)}. Write it as UTF-8."
        ) from None
    if not rows:
        raise CorruptSubmission("the manifest names no files.")
    return rows


def _parser_of(text: bytes) -> Callable[[bytes], Iterator[tuple[int, Mapping[str, Any]]]]:
    beginning = text[: 2 * KIB].removeprefix(codecs.BOM_UTF8).lstrip()
    if beginning.startswith(b"<"):
        raise CorruptSubmission("the manifest is XML or a web page. Write it as CSV, JSON lines or Checkm.")
    if beginning.startswith(b"{"):
        return _parse_json
    return _parse_checkm if beginning.startswith(b"#%checkm") else _parse_csv


def _first_bad_byte(text: bytes) -> int:
    try:
        text.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        return e.start
    return len(text)


def group_by_object(rows: Iterable[ManifestRow]) -> list[ManifestObject]:
    """Group lines by object, in the order in which the objects are first named.

    Raises:
        CorruptSubmission: two files of one object have the same path.
    """
    rows_by_key: dict[tuple[str, str], list[ManifestRow]] = {}
    for row in rows:
        key = (row.collection, row.local_id) if row.local_id else ("", f"\0{row.line}")
        rows_by_key.setdefault(key, []).append(row)
    return [
        ManifestObject(_key_of(collection, local), _assign_paths(lines))
        for (collection, local), lines in rows_by_key.items()
    ]


def _key_of(collection: str, local: str) -> str:
    """Return the key of an object; collections and local ids may have slashes in them."""
    if local[0] == "\0":
        return f"line {local[1:]}"
    return f"{collection.replace('%', '%25').replace('/', '%2F')}/{local}"


class _ManifestLines:
    """Decodes a text line by line, since decoding it as a whole could take four times its bytes."""

    def __init__(self, text: bytes, newline: str) -> None:
        self._lines = io.TextIOWrapper(io.BytesIO(text), "utf-8-sig", newline=newline)
        self.number = 0
        """Number of the last line returned."""
        self._chars_left = ROW_CHARS

    def begin_row(self) -> None:
        """Begin a new row, which may have ``ROW_CHARS`` characters."""
        self._chars_left = ROW_CHARS

    def __iter__(self) -> Iterator[str]:
        while line := self._lines.readline(self._chars_left + 1):
            self.number += 1
            self._chars_left -= len(line)
            if self._chars_left < 0:
                raise CorruptSubmission(
                    f"line {self.number} of the manifest: its row has more than {ROW_CHARS} characters."
                )
            yield line


def _parse_json(text: bytes) -> Iterator[tuple[int, Mapping[str, Any]]]:
    lines = _ManifestLines(text, "\n")
    for line in lines:
        number = lines.number
        lines.begin_row()
        if not line.strip():
            continue
        try:
            values = decode_json(line)
        except ValueError as e:
            raise CorruptSubmission(f"line {number} of the manifest is not JSON: {plain_text(e)}.") from None
        if not isinstance(values, dict):
            raise CorruptSubmission(f"line {number} of the manifest is JSON, but not an object.")
        yield number, {_column_name(name): value for name, value in values.items()}


def _parse_csv(text: bytes) -> Iterator[tuple[int, Mapping[str, Any]]]:
    lines = _ManifestLines(text, "")
    reader = csv.reader(iter(lines), strict=True)
    header: list[str] = []
    try:
        for cells in reader:
            lines.begin_row()
            if not any(cell.strip() for cell in cells):
                continue
            if not header:
                header = [_column_name(cell) for cell in cells]
                if "url" not in header:
                    raise CorruptSubmission(
                        f"line {reader.line_num} of the manifest has no column url, but {', '.join(cells)[:200]}. "
                        "The first line names the columns."
                    )
                continue
            if len(cells) != len(header):
                raise CorruptSubmission(
                    f"line {reader.line_num} of the manifest has {len(cells)} columns, the first one {len(header)}."
                )
            yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as e:
        raise CorruptSubmission(f"line {reader.line_num} of the manifest is not CSV: {e}.") from None


CHECKM_FIELDS: Final[Mapping[str, str]] = {
    "fileurl": "url",
    "hashalgorithm": "digest_type",
    "hashvalue": "digest",
    "filesize": "size",
    "filelastmodified": "file_last_modified",
    "filename": "file_name",
    "primaryidentifier": "primary_id",
    "localidentifier": "local_id",
    "creator": "erc_who",
    "title": "erc_what",
    "date": "erc_when",
    "mimetype": "mime_type",
}
"""Name of a field in Checkm manifests, without its prefix and in lower case -> column."""


def _parse_checkm(text: bytes) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the rows of a Checkm manifest: ``#%fields | nfo:fileUrl | …``, then a line per file, then ``#%eof``."""
    lines = _ManifestLines(text, "\n")
    header = list(CHECKM_FIELDS.values())[:6]
    for line in lines:
        number, line = lines.number, line.strip()
        lines.begin_row()
        if line.lower() == "#%eof":
            return
        cells = [cell.strip() for cell in line.split("|")]
        if cells[0].lower() == "#%fields":
            names = [cell.rpartition(":")[2].strip().lower() for cell in cells[1:] if cell]
            header = [CHECKM_FIELDS.get(name, name) for name in names]
        if not line or line.startswith("#"):
            continue
        if any(cells[len(header) :]):
            raise CorruptSubmission(f"line {number} of the manifest has more columns than its #%fields.")
        values = dict(zip(header, cells, strict=False))
        kind = values.pop("digest_type", "")
        if kind and values.get("digest"):
            values["digest"] = f"{kind}:{values['digest']}"
        yield number, values
    raise CorruptSubmission("the manifest has no #%eof at its end, so it may be cut off. Write it whole.")


def _count_values(values: Any) -> int:
    """Count the values in a JSON value."""
    if isinstance(values, dict):
        return sum(map(_count_values, values.values()), 1)
    return sum(map(_count_values, values), 1) if isinstance(values, list) else 1


def _column_name(name: str) -> str:
    plain = re.sub(r"[\s-]+", "_", name.strip().lower())
    return _ALIASES.get(plain, plain)


def _parse_row(line: int, values: Mapping[str, Any], base: str) -> ManifestRow:
    try:
        cells = {name: "" if values.get(name) is None else str(values[name]).strip() for name in _COLUMNS}
        url = check_url(cells["url"], base)
        if split(url)[1].scheme == "file" and split(base)[1].scheme != "file":
            raise CorruptSubmission(
                f"{redact(url)} is a file of the machine that reads this; a server may not name one."
            )
        entry = ManifestEntry(
            url,
            check_path(cells["file_name"]) if cells["file_name"] else "",
            check_digest(cells["digest"]),
            parse_integer("size", cells["size"]),
            {
                name: value
                for name, value in values.items()
                if name not in _COLUMNS and name and value not in ("", None)
            },
        )
        return ManifestRow(
            line,
            entry,
            cells["local_id"],
            cells["primary_id"],
            parse_integer("priority", cells["priority"]),
            cells["profile_name"],
        )
    except CorruptSubmission as e:
        raise CorruptSubmission(f"line {line} of the manifest: {e}") from None


def parse_integer(name: str, text: str) -> int | None:
    """Parse an integer that a submitter wrote; None if the text is empty.

    Raises:
        CorruptSubmission: it is not an integer, or has more than 18 digits.
    """
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise CorruptSubmission(f"{name} {text[:40]!r} is not an integer.")
    return int(text)


def _assign_paths(rows: list[ManifestRow]) -> list[ManifestRow]:
    """Give each file of an object a unique path."""
    given_paths = {row.entry.path for row in rows if row.entry.path}
    line_of_path: dict[str, int] = {}
    last_numbers: dict[str, int] = {}
    result = []
    for row in rows:
        entry = row.entry
        path = entry.path or free_name(
            file_name_of(entry.url), lambda path: path in line_of_path or path in given_paths, last_numbers
        )
        if path in line_of_path:
            raise CorruptSubmission(
                f"line {row.line} of the manifest: the file_name {path!r} is also that of line {line_of_path[path]}. "
                "Give each file of an object its own."
            )
        line_of_path[path] = row.line
        result.append(row._replace(entry=msgspec.structs.replace(entry, path=path)))
    return result


def free_name(name: str, is_taken: Callable[[str], bool], last_numbers: dict[str, int]) -> str:
    """Return the name, with a number if it is taken: ``page.txt``, ``page-2.txt``.

    Args:
        last_numbers: name -> the last number that was added to it; updated by this call.
    """
    if not is_taken(name):
        return name
    pure = PurePosixPath(name)
    stem, suffix = (pure.stem, pure.suffix) if len(pure.suffix.encode()) <= SUFFIX_BYTES else (name, "")
    stem = last_bytes(stem, NAME_BYTES - NUMBER_BYTES - len(suffix.encode()))
    base = stem + suffix  # names that differ only in the part that was cut off are numbered together
    path = name
    while is_taken(path):
        last_numbers[base] = last_numbers.get(base, 1) + 1
        path = f"{stem}-{last_numbers[base]}{suffix}"
    return path


def file_name_of(url: str) -> str:
    name = unquote(split(url)[1].path.rpartition("/")[2], errors="replace")
    name = _NOT_IN_NAMES.sub("_", name.replace("/", "_").replace("\\", "_")).strip()
    name = last_bytes(name, NAME_BYTES)  # the suffix tells what kind of file it is
    return "file" if name in ("", ".", "..") else name


def last_bytes(name: str, size: int) -> str:
    """Return the last characters of a name, at most ``size`` bytes."""
    return name.encode()[-size:].decode(errors="ignore")


def check_url(url: str, base: str = "") -> str:
    """Return the absolute URL if it can be fetched.

    Args:
        base: URL that it may be relative to.

    Raises:
        CorruptSubmission: it is not a URL that can be fetched.
    """
    if not url:
        raise CorruptSubmission("there is no url.")
    try:
        url, parts = split(url, base)
    except ValueError as e:
        raise CorruptSubmission(f"the url {e}. Correct it.") from None
    if _NOT_IN_NAMES.search(url):
        raise CorruptSubmission(f"the url {redact(url)} has control characters. Correct it.")
    if parts.scheme not in SCHEMES or (parts.scheme != "file" and not parts.hostname):
        raise CorruptSubmission(
            f"the url {redact(url)} is not one of {', '.join(SCHEMES)}. Give it whole: http://host/path."
        )
    if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or not parts.path.startswith("/")):
        raise CorruptSubmission(f"the url {redact(url)} is not a file of this machine. Give it as file:///path.")
    return url


def check_response_url(url: str) -> str:
    """Return the URL if a report can be posted to it.

    Raises:
        CorruptSubmission: it is not an http or https URL.
    """
    with suppress(CorruptSubmission, ValueError):
        if split(check_url(url))[1].scheme in ("http", "https"):
            return url
    raise CorruptSubmission(f"the response_url {redact(url)} is not an http or https URL. Correct it.")


def check_digest(text: str) -> str:
    """Normalize a digest to ``sha256:HEX``. ``SHA-256:…`` is accepted, and so are hex digits alone, recognized by their
    number.

    Raises:
        CorruptSubmission: it is not a digest that can be checked.
    """
    if not text:
        return ""
    kind, colon, digits = text.lower().replace("=", ":", 1).partition(":")
    if not colon:
        kind, digits = next((name for name, length in DIGESTS.items() if length == len(text)), ""), text.lower()
    kind = kind.replace("-", "").strip()
    digits = digits.strip()
    if DIGESTS.get(kind) != len(digits) or not re.fullmatch("[0-9a-f]+", digits):
        raise CorruptSubmission(
            f"the digest {text[:140]!r} is not one of {', '.join(DIGESTS)}. Write it as sha256:HEX."
        )
    return f"{kind}:{digits}"


def check_path(path: str) -> str:
    """Normalize a path below a folder, with ``/`` between names.

    Raises:
        CorruptSubmission: it leads out of the folder, or no file can have it.
    """
    if leads_outside(path):
        raise CorruptSubmission(f"the path {path[:200]!r} leads out of the object. Give paths below one folder.")
    parts = [part for part in path.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or len(path) > PATH_CHARS or _NOT_IN_NAMES.search(path):
        raise CorruptSubmission(f"the path {path[:200]!r} cannot be a file's.")
    if any(len(part.encode()) > NAME_BYTES for part in parts):
        raise CorruptSubmission(f"the path {path[:200]!r} has a name of more than {NAME_BYTES} bytes.")
    return "/".join(parts)
