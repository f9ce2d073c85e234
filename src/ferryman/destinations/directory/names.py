"""What the file of a document is called."""

from __future__ import annotations

import os
import re
import unicodedata
from hashlib import blake2b
from typing import Final
from urllib.parse import unquote_to_bytes

NAME_BYTES: Final = 240
"""Of one name: 255 are what file systems take, and what comes to be put before or behind it needs some."""

PATH_BYTES: Final = 1000
"""Of a whole path below the directory: a quarter of what Linux takes, all that macOS takes."""

STEM_CHARACTERS: Final = 60
SUFFIX_CHARACTERS: Final = 10
"""Of an id, in a name that is made up: enough for a reader to recognise it, and for a program to know its kind."""

_UNSAFE: Final = re.compile(r'[%/\\:*?"<>|~\x00-\x1f\x7f-\x9f\u2028\u2029]')
"""What some file system refuses, what would begin another folder, line ends, and ``~``, by which we name clashes."""


def plain(id: str) -> str | None:
    """The path that an id asks for: its parts between slashes are folders, what is percent-encoded in it is decoded.

    ``None`` if no file can be called so: a name or path that is too long, an empty name.

    Raises:
        UnicodeEncodeError: the id is not text.
    """
    names = [_safe(name) for name in id.split("/")]
    if names[0].casefold() == ".ferryman":
        names[0] = "%2E" + names[0][1:]
    path = "/".join(names)
    if len(path.encode()) > PATH_BYTES or any(not name or len(name.encode()) > NAME_BYTES for name in names):
        return None
    return path


def unlike(id: str, suffix: str = "") -> str:
    """A path that no other id has, for one that cannot have its plain one: its beginning, ``~``, a hash of the id."""
    stem, dot, own = id.rpartition("/")[2].rpartition(".")
    if not stem or not own.isascii() or not own.isalnum() or len(own) > SUFFIX_CHARACTERS:
        stem, own = stem + dot + own, ""
    begin = re.sub(r"[^A-Za-z0-9._ -]", "_", stem)[:STEM_CHARACTERS].strip(" .")
    return f"{begin}~{blake2b(id.encode(), digest_size=16).hexdigest()}{'.' if own else ''}{own}{suffix}"


def key(path: str) -> str:
    """Equal for two paths that some file system takes for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _safe(name: str) -> str:
    decoded = name
    if "%" in name:
        try:
            decoded = unquote_to_bytes(name).decode()
        except UnicodeDecodeError:
            return _encoded(name.replace("%", "\0")).replace("%00", "%")  # bytes that are no text stay encoded
    safe = _encoded(decoded)
    if safe in (".", ".."):
        return safe.replace(".", "%2E")
    if safe[-1:] in (".", " "):
        return safe[:-1] + f"%{ord(safe[-1]):02X}"
    return safe


def _encoded(name: str) -> str:
    return _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)


def below(folder: str, path: str) -> str:
    """The path in the operating system's words."""
    return os.path.join(folder, *path.split("/"))
