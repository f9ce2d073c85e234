"""Mails as bytes: where each one of a mailbox file (mbox) begins and ends, and the id of a mail by its headers."""

from __future__ import annotations

import re
from base64 import b32encode
from collections.abc import Iterator
from hashlib import blake2b
from typing import BinaryIO, Final, NamedTuple

from ferryman.limits import KIB, MIB

MAILBOX_LINE: Final = re.compile(
    rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))"
    rb"From (?>[^\r\n]{0,200}? (?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )(?=[^\r\n]{0,100}?[0-9]{4})[^\r\n]{0,150}+\r?\n"
    rb"(?=[!-9;-~]{1,80}:)"
)
"""Line before each message of a mailbox, and where it stands: after a blank line, before a header."""

HEADER_BYTES: Final = 64 * KIB
"""Bytes of a mail that are looked at for its headers."""

_TEXT_BYTES: Final = 4 * KIB
"""Bytes of the text of a mail without a Message-ID that are part of its id."""

_LINE_BYTES: Final = KIB
"""More bytes than ``MAILBOX_LINE`` and what it looks ahead to."""

_BEHIND_BYTES: Final = 3
"""Bytes that ``MAILBOX_LINE`` looks behind."""

BLOCK_BYTES: Final = MIB

_QUOTED_LINE: Final = re.compile(rb"^>(>*From )", re.MULTILINE)
"""Line of a message that its mailbox quotes, so that it does not begin the next one."""

_END_OF_HEADERS: Final = re.compile(rb"\r?\n\r?\n")
_HEADER: Final = re.compile(rb"^([!-9;-~]+)[ \t]*:[^\n]*(?:\n[ \t][^\n]*)*", re.MULTILINE)

_CHANGING: Final = frozenset(
    {b"status", b"x-status", b"x-keywords", b"x-uid", b"x-imap", b"x-imapbase", b"content-length", b"lines"}
    | {b"x-mozilla-status", b"x-mozilla-status2", b"x-mozilla-keys", b"x-gmail-labels", b"x-evolution"}
)
"""Headers that mail programs write into their copy of a mail: the folder, what was read."""

_MESSAGE_ID: Final = re.compile(rb"<?([!-;=?-~]{1,200})>?")


class MailSpan(NamedTuple):
    """Place of a message in a mailbox file, without the line before it."""

    start: int
    end: int


def split_mailbox(
    file: BinaryIO, start: int = 0, end: int | None = None, *, is_inside: bool = False
) -> Iterator[MailSpan]:
    """Yield where the messages of a mailbox file are, reading it once, a block at a time.

    Args:
        start: where to begin: at the line before a message.
        end: where the file ends; None: where it ends when that is reached.
        is_inside: ``start`` is where a message begins, behind that line.
    """
    file.seek(start)
    window, at = b"", start
    searched = 0  # place in the window up to which no line begins that was not found
    begun = start if is_inside else None
    while True:
        wanted = BLOCK_BYTES if end is None else min(BLOCK_BYTES, end - at - len(window))
        block = file.read(wanted) if wanted else b""
        window += block
        is_last = not block
        certain = len(window) if is_last else len(window) - _LINE_BYTES
        for match in _find_lines(window, searched, certain):
            if begun is not None:
                yield MailSpan(begun, at + match.start())
            begun = at + match.end()
        if is_last:
            break
        keep = max(certain - _BEHIND_BYTES, 0)
        searched = max(certain, 0) - keep
        window, at = window[keep:], at + keep
    if begun is not None:
        yield MailSpan(begun, at + len(window))


def _find_lines(window: bytes, start: int, end: int) -> Iterator[re.Match[bytes]]:
    """Yield the matches of ``MAILBOX_LINE`` that begin in a part of a window: what begins like one is found faster."""
    if start == 0 and end > 0 and (match := MAILBOX_LINE.match(window)):
        yield match
    at = window.find(b"\nFrom ", max(start - 1, 0))
    while 0 <= at < end - 1:
        if match := MAILBOX_LINE.match(window, at + 1):
            yield match
        at = window.find(b"\nFrom ", at + 1)


def unquote_lines(message: bytes) -> bytes:
    """Return a message of a mailbox file without the marks at lines that would begin the next one."""
    return _QUOTED_LINE.sub(rb"\1", message)


def headers_of(message: bytes) -> bytes:
    """Return the headers at the beginning of a message."""
    head = message[:HEADER_BYTES]
    if head.startswith((b"\n", b"\r\n")):
        return b""
    found = _END_OF_HEADERS.search(head)
    return head[: found.start()] if found else head


def has_whole_headers(head: bytes) -> bool:
    """Return whether the headers at the beginning of a message have an end."""
    return len(head) >= HEADER_BYTES or _END_OF_HEADERS.search(head) is not None


def message_id_of(headers: bytes) -> str:
    """Return the Message-ID without its brackets; "" if there is none that is usual."""
    for header in _HEADER.finditer(headers.replace(b"\r\n", b"\n")):
        if header[1].lower() == b"message-id":
            found = _MESSAGE_ID.fullmatch(b"".join(header[0].partition(b":")[2].split()))
            return found[1].decode() if found else ""
    return ""


def mail_id(beginning: bytes) -> str:
    """Return the id of a mail: its Message-ID and a hash of its headers, but for those that mail programs change. The
    hash of a mail without a Message-ID has the beginning of its text in it, since a program may send two of them in one
    second. Of what has no headers, the beginning is hashed.

    Args:
        beginning: the mail, or at least its headers and up to ``HEADER_BYTES``; the headers are enough if there is a
            Message-ID.
    """
    beginning = beginning[:HEADER_BYTES]
    raw_headers = headers_of(beginning)
    headers = raw_headers.replace(b"\r\n", b"\n")
    digest = blake2b(digest_size=10)
    is_empty = True
    for header in _HEADER.finditer(headers):
        is_empty = False
        if header[1].lower() not in _CHANGING:
            digest.update(header[0].rstrip() + b"\n")
    message_id = message_id_of(headers)
    if is_empty:
        digest.update(beginning.replace(b"\r\n", b"\n").strip())
    elif not message_id:
        text = beginning[len(raw_headers) :].replace(b"\r\n", b"\n").strip()
        digest.update(text[:_TEXT_BYTES])
    hashed = b32encode(digest.digest()).decode().lower()
    return f"{message_id}/{hashed}" if message_id else hashed


def names_a_mail(headers: bytes) -> bool:
    """Return whether these headers are enough for ``mail_id``."""
    return bool(message_id_of(headers_of(headers)))
