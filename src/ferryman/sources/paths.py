"""File names as text: as ids that survive the way back, and as words in a message."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote_to_bytes

_PLAIN = re.compile(r"[ -~]*")
_CONTROL = "\x00-\x1f\x7f-\x9f\u2028\u2029"  # they would break a line of output in two
_UNDECODABLE = "\udc80-\udcff"  # a byte that is not UTF-8, as Python keeps it
_ENCODED_IN_ID = re.compile(f"[%#{_CONTROL}{_UNDECODABLE}]")
_ENCODED_IN_OWN_ID = re.compile("#|%(?=2[35])")
_ENCODED_IN_MESSAGE = re.compile(f"[{_CONTROL}{_UNDECODABLE}]")


def id_of(name: str) -> str:
    """The id of a file by its name or relative path as the operating system gives it.

    Every name has exactly one id, and ``name_of`` leads back, whatever bytes the name is made of. Letters of all
    alphabets, spaces and punctuation stay as they are. Percent-encoded, byte by byte, are ``%`` itself, ``#`` (it
    parts a child's key from its parent), control characters and Unicode's line ends, and bytes that are not UTF-8.
    The id does not depend on the locale of the process that makes it.
    """
    if _PLAIN.fullmatch(name) and "%" not in name and "#" not in name:
        return name
    return _ENCODED_IN_ID.sub(_encode, _utf8(name))


def name_of(id: str) -> str:
    """The name as the operating system wants it, from an id that ``id_of`` made.

    Raises:
        UnicodeEncodeError: no ``id_of`` made this.
    """
    if id.isascii() and "%" not in id:
        return id
    return os.fsdecode(unquote_to_bytes(id))


def id_of_key(key: str) -> str:
    """The id of a file by its name in a store that keeps names as text, as ``id_of``; ``key_of`` leads back."""
    return _ENCODED_IN_ID.sub(_encode, key)


def key_of(id: str) -> str:
    """The name in the store, from an id that ``id_of_key`` made."""
    return unquote_to_bytes(id).decode("utf-8", "surrogateescape") if "%" in id else id


def id_of_text(text: str) -> str:
    """The id of a document that has a name of its own (a key of a table, a URL); ``text_of`` leads back.

    ``#`` becomes ``%23``, for it parts a child's key from its parent; a ``%`` becomes ``%25`` where 23 or 25 follow, so
    that no two names have one id. All else stays as it is: a URL with ``%20`` in it too.
    """
    return _ENCODED_IN_OWN_ID.sub(_encode, text) if "#" in text or "%2" in text else text


def ids_of_texts(texts: list[str]) -> list[str]:
    """The same of many names: nearly always there is nothing to encode in any of them."""
    every = "\0".join(texts)
    return list(map(id_of_text, texts)) if "#" in every or "%2" in every else texts


def text_of(id: str) -> str:
    """The name, from an id that ``id_of_text`` made."""
    return id.replace("%23", "#").replace("%25", "%") if "%2" in id else id


def shown_key(key: str) -> str:
    """A name in a store for a message, on one line."""
    return _ENCODED_IN_MESSAGE.sub(_encode, key)


def shown(path: str) -> str:
    """A path for a message: as it is, but on one line and printable."""
    return path if _PLAIN.fullmatch(path) else _ENCODED_IN_MESSAGE.sub(_encode, _utf8(path))


def _utf8(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "surrogateescape")


def _encode(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogateescape"))
