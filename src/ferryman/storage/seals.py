"""Small files that hold their own checksum, so that a damaged one is known."""

from __future__ import annotations

import zlib
from hashlib import blake2b

import msgspec

from ferryman.errors import StateDamaged
from ferryman.storage.files import StatePath, read


def checksum(data: bytes) -> str:
    """What a mark says of a file of the log."""
    return blake2b(data, digest_size=16).hexdigest()


def sealed(record: object) -> bytes:
    """A record as JSON behind its CRC-32, so that ``unseal`` knows it whole."""
    body = msgspec.json.encode(record)
    return b"%08x " % zlib.crc32(body) + body


def unseal(path: StatePath) -> object:
    """The record in a sealed file.

    Raises:
        StateDamaged: the file is missing, or not what was written.
    """
    try:
        return unsealed(path, read(path))
    except FileNotFoundError:
        raise StateDamaged(str(path), "the file is missing") from None


def unsealed(path: StatePath, data: bytes) -> object:
    """The record in the content of a sealed file.

    Raises:
        StateDamaged: it is not what was written.
    """
    body = data[9:]
    if data[:9] != b"%08x " % zlib.crc32(body):
        raise StateDamaged(str(path), "its checksum does not match its content")
    return msgspec.json.decode(body)
