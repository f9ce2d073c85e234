"""Mailbox files are split as a stream, and a mail has one id wherever it lies."""

from __future__ import annotations

import io
import random

import pytest

from ferryman.net import mailboxes
from ferryman.net.mailboxes import mail_id, message_id_of, split_mailbox, unquote_lines

LINE = b"From ann@example.org Mon May  6 10:00:00 2024\n"
MAIL = b"Message-ID: <1@example.org>\nSubject: One\n\nText\n"


def messages(raw: bytes, **options: int) -> list[bytes]:
    return [raw[start:end] for start, end in split_mailbox(io.BytesIO(raw), **options)]  # type: ignore[arg-type]


def test_messages_are_found() -> None:
    assert messages(b"") == []
    assert messages(LINE + MAIL) == [MAIL]
    assert messages(LINE + MAIL + b"\n" + LINE + MAIL) == [MAIL + b"\n", MAIL]
    crlf = (LINE + MAIL + b"\n" + LINE + MAIL).replace(b"\n", b"\r\n")
    assert [m.count(b"Subject") for m in messages(crlf)] == [1, 1]


@pytest.mark.parametrize(
    "text",
    [
        b"\nFrom here on it is text.\n",
        b"\nFrom Monday on, Mon 2024, all is well.\nand so on\n",
        b"From ann@example.org Mon May  6 10:00:00 2024\nSubject: not after a blank line\n",
        b"\nFrom ann@example.org Mon May  6 10:00:00 2024\nno header follows\n",
        b"\n>From ann@example.org Mon May  6 10:00:00 2024\nSubject: quoted\n",
    ],
)
def test_a_line_of_a_text_begins_no_message(text: bytes) -> None:
    raw = LINE + MAIL + text + b"\n" + LINE + MAIL
    assert messages(raw) == [MAIL + text + b"\n", MAIL]


@pytest.mark.parametrize("block", [2048, 2049, 5000, 1 << 20])
def test_blocks_cut_anywhere(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(mailboxes, "BLOCK_BYTES", block)
    chance = random.Random(block)
    wanted = [
        MAIL + b"\nFrom x\n" * chance.randrange(3) + chance.randbytes(chance.randrange(4000)).hex().encode() + b"\n\n"
        for _ in range(200)
    ]
    raw = b"".join(LINE + each for each in wanted)
    assert messages(raw) == wanted
    first = len(LINE) + len(wanted[0]) + len(LINE)
    assert [raw[a:b] for a, b in split_mailbox(io.BytesIO(raw), first, is_inside=True)] == wanted[1:]


def test_an_end_cuts_the_file_there() -> None:
    raw = LINE + MAIL + b"\n" + LINE + MAIL
    assert messages(raw, end=len(raw) - 5) == [MAIL + b"\n", MAIL[:-5]]


def test_quoted_lines() -> None:
    assert unquote_lines(b"a\n>From b\n>>From c\n> From d\n") == b"a\nFrom b\n>From c\n> From d\n"


def test_an_id_is_the_message_id_and_a_hash_of_the_headers() -> None:
    id = mail_id(MAIL)
    assert id == mail_id(MAIL.partition(b"\n\n")[0])
    assert id.startswith("1@example.org/")
    assert mail_id(b"Message-ID: <1@example.org>\nSubject: Two") != id
    assert "/" not in mail_id(b"Subject: without one")
    assert mail_id(b"Subject: without one") != mail_id(b"Subject: without another")


@pytest.mark.parametrize(
    "headers",
    [
        b"Message-ID: <1@example.org>\r\nSubject: One",
        b"Message-ID: <1@example.org>\nSubject: One\nStatus: RO\nX-Status: A\nX-UID: 17",
        b"X-Mozilla-Status: 0001\nX-Mozilla-Keys: \n  more\nMessage-ID: <1@example.org>\nSubject: One\n",
        b"X-Gmail-Labels: Inbox,\r\n Important\r\nMessage-ID: <1@example.org>\r\nSubject: One\r\n",
    ],
)
def test_what_programs_write_into_their_copy_does_not_count(headers: bytes) -> None:
    assert mail_id(headers) == mail_id(b"Message-ID: <1@example.org>\nSubject: One")


@pytest.mark.parametrize(
    ("header", "id"),
    [
        (b"Message-ID: <a@b>", "a@b"),
        (b"message-id:\r\n <a@b>", "a@b"),
        (b"MESSAGE-ID: a@b", "a@b"),
        (b"Message-ID: <" + b"x" * 300 + b">", ""),
        (b"Message-ID: <a\x00b>", ""),
        (b"Message-ID: \xe4", ""),
        (b"Message-ID:", ""),
        (b"Subject: x\n Message-ID: <folded@b>", ""),
    ],
)
def test_the_message_id(header: bytes, id: str) -> None:
    assert message_id_of(header) == id


def test_what_has_no_headers_is_known_by_its_beginning() -> None:
    assert len({mail_id(b""), mail_id(b"\n\ntext"), mail_id(b"\n\nother"), mail_id(b"just text")}) == 4
    assert mail_id(b"\r\ntext\r\nmore") == mail_id(b"\ntext\nmore\n")
