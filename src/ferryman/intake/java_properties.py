"""Serialized ``Properties`` of Java, read without Java: keys are text, values text or a Boolean, and nothing else.

The stream is read by hand, for these classes: no other class is looked up, made or called. A stream that names
another one is refused. A Boolean, which ingest wrote for ``update``, becomes ``true`` or ``false`` in text. See
"Object Serialization Stream Protocol" of Java.
"""

from __future__ import annotations

import struct
from typing import Any, Final

MAGIC: Final = b"\xac\xed\x00\x05"
"""What such a stream begins with."""

CHARACTERS_MAX: Final = 1 << 20
"""Of all keys and values. A stream can name one long text many times, so its size does not bound what it holds."""

DEFAULTS_MAX: Final = 8
"""Properties have defaults, which have defaults, …: so many."""

_NULL, _REFERENCE, _CLASS, _OBJECT, _STRING = 0x70, 0x71, 0x72, 0x73, 0x74
_BLOCK, _END, _LONG_STRING = 0x77, 0x78, 0x7C
_FIRST_HANDLE: Final = 0x7E0000
_PAIR_BYTES_MIN: Final = 6
"""Of a key and a value: an empty text takes three bytes."""

_DEFAULTS: Final = b"\x00\x08defaults"
_PROPERTIES: Final = b"\x00\x14java.util.Properties" + bytes.fromhex("3912d07a70363e98 02 0001") + b"L" + _DEFAULTS
_TYPE: Final = "Ljava/util/Properties;"
_HASHTABLE: Final = (
    b"\x00\x13java.util.Hashtable" + bytes.fromhex("13bb0f25214ae4b8 03 0002")
    + b"F\x00\x0aloadFactorI\x00\x09threshold"
)  # fmt: skip
_BOOLEAN: Final = (
    b"\x00\x11java.lang.Boolean" + bytes.fromhex("cd207280d59cfaee 02 0001") + b"Z\x00\x05value" + bytes([_END, _NULL])
)


def is_serialized(data: bytes) -> bool:
    """Is this a stream of serialized Java objects, of whichever class?"""
    return data.startswith(MAGIC)


def properties_of(data: bytes) -> dict[str, str]:
    """The keys and values, in text, of a stream that holds one ``Properties``; of its defaults where it has no own.

    Raises:
        ValueError: it holds something else, is cut off, or too large; says which, and at which byte.
    """
    stream = _SerializedStream(data)
    stream.expect(MAGIC, "Java's serialized objects")
    found = stream.properties()
    if data[stream.at :].strip(b"\0"):
        raise stream.error("more than one object")
    return found


class _SerializedStream:
    """A place in the bytes, and what was read before that later bytes may refer to."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0
        self._handles: list[Any] = []
        self._characters = 0

    def error(self, what: str) -> ValueError:
        return ValueError(f"{what} at byte {self.at}")

    def take(self, size: int) -> bytes:
        found = self._data[self.at : self.at + size]
        if len(found) < size:
            raise self.error(f"it ends too early: {size} more bytes are announced")
        self.at += size
        return found

    def number(self, layout: str) -> int:
        (found,) = struct.unpack(layout, self.take(struct.calcsize(layout)))
        return int(found)

    def expect(self, wanted: bytes, what: str) -> None:
        if not self._data.startswith(wanted, self.at):
            raise self.error(f"{what} was expected")
        self.at += len(wanted)

    def properties(self, depth: int = 0) -> dict[str, str]:
        """An object of this class, from its first byte."""
        if depth > DEFAULTS_MAX:
            raise self.error(f"more than {DEFAULTS_MAX} levels of defaults")
        self.expect(bytes([_OBJECT]), "an object")
        self._class()
        self._handles.append(None)  # the object itself: nothing that is text can refer to it
        self.take(8)  # load factor and threshold of a Hashtable
        self.expect(bytes([_BLOCK, 8]), "the size of a Hashtable")
        self.take(4)
        pairs = self.number(">i")
        if not 0 <= pairs <= (len(self._data) - self.at) // _PAIR_BYTES_MIN:
            raise self.error(f"{pairs} entries are announced, more than fit")
        own = {self.text(): self.value() for _ in range(pairs)}
        self.expect(bytes([_END]), "the end of a Hashtable")
        return {**self._defaults(depth), **own}

    def _defaults(self, depth: int) -> dict[str, str]:
        if self._data[self.at : self.at + 1] == bytes([_NULL]):
            self.at += 1
            return {}
        return self.properties(depth + 1)

    def _class(self) -> None:
        """The description of Properties and of what it extends; it is there once, and then referred to."""
        kind = self.number("B")
        if kind == _REFERENCE:
            if self._referred() is not _PROPERTIES:
                raise self.error("an object of another class than Properties")
            return
        if kind != _CLASS:
            raise self.error("a class was expected")
        self.expect(_PROPERTIES, "java.util.Properties (another class is not read)")
        self._handles.append(_PROPERTIES)
        if self.text() != _TYPE:
            raise self.error("Properties whose defaults are something else")
        self.expect(bytes([_END, _CLASS]) + _HASHTABLE + bytes([_END, _NULL]), "java.util.Hashtable")
        self._handles.append(_HASHTABLE)

    def _referred(self) -> Any:
        handle = self.number(">I") - _FIRST_HANDLE
        if not 0 <= handle < len(self._handles):
            raise self.error("a reference to what is not there")
        return self._handles[handle]

    def value(self) -> str:
        """A text, or a Boolean in words."""
        start = self.at
        if self._data[start : start + 1] == bytes([_OBJECT]):
            self.at += 1
            return self._boolean()
        if self._data[start : start + 1] == bytes([_REFERENCE]):
            self.at += 1
            found = self._referred()
            if isinstance(found, bool):
                return str(found).lower()
            self.at = start
        return self.text()

    def _boolean(self) -> str:
        kind = self.number("B")
        if kind == _CLASS:
            self.expect(_BOOLEAN, "java.lang.Boolean (a value that is not text, of another class, is not read)")
            self._handles.append(_BOOLEAN)
        elif kind != _REFERENCE or self._referred() is not _BOOLEAN:
            raise self.error("a value that is not text, and of another class than Boolean")
        found = self.number("B") != 0
        self._handles.append(found)
        return str(found).lower()

    def text(self) -> str:
        """A text, or a reference to an earlier one."""
        kind = self.number("B")
        if kind == _REFERENCE:
            found = self._referred()
            if not isinstance(found, str):
                raise self.error("a reference to what is not text")
        elif kind in (_STRING, _LONG_STRING):
            found = self._decoded(self.take(self.number(">H" if kind == _STRING else ">Q")))
            self._handles.append(found)
        else:
            raise self.error(f"a key or value that is not text (code {kind:#04x})")
        self._characters += len(found)
        if self._characters > CHARACTERS_MAX:
            raise self.error(f"more than {CHARACTERS_MAX} characters")
        return found

    def _decoded(self, data: bytes) -> str:
        """Java's own UTF-8: NUL in two bytes, and what is beyond 16 bits as two surrogates."""
        try:
            halves = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise self.error("a text that is not Java's UTF-8 ends") from None
        return halves.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
