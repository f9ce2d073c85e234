"""Manual pages and other troff are read as text with a title."""

from __future__ import annotations

import gzip
import itertools
import random
from pathlib import Path

import pytest

from ferryman import Plan
from ferryman.document import Document
from ferryman.sources import Files
from ferryman.steps import extract_text
from ferryman.steps.formats import MARKDOWN, PLAIN, TROFF, kind_of
from ferryman.steps.formats.troff import troff
from tests.support.plan_world import run_plan
from tests.support.recorder import Recorder

MAN = rb""".\" A comment
.ie \n(.g .ds Aq \(aq
.el       .ds Aq '
.de Vb
.ft CW
..
.TH MUSE 1 "May 1599" "Globe" "User Commands"
.SH NAME
muse \- ask for a brighter heaven of invention
.SH SYNOPSIS
.B muse
[\fI\,OPTION\/\fR]... [\fIFILE\fR]
.SH "DESCRIPTION OF IT"
O for a \fBMuse\fP of fire, that would ascend
the \*(lqbrightest\*(rq heaven; caf\('e \[em] don\*(Aqt.
.if t .sp 3
.if n \{\
Only on a terminal.
.\}
.if t \{\
Only on paper.
.\}
.TP 4
.BR \-a ", " \-\-all
all of it
.IP \(bu 2
one point
.PP
See
.BR stage (7).
.nf
one   two
  three
.fi
.TS
tab(@);
l l.
left	right
.TE
"""

MDOC = rb""".Dd May 1, 1599
.Dt SSH 1
.Os
.Sh NAME
.Nm ssh
.Nd remote login client
.Sh SYNOPSIS
.Nm
.Op Fl 46
.Op Fl b Ar address
.Sh DESCRIPTION
.Bl -tag -width Ds
.It Fl 4
Use IPv4 only, as
.Xr ssh_config 5 .
.It Fl p Ar port
A
.Dq port ,
or
.Pa /etc/services .
.El
"""


def text_of(raw: bytes) -> str:
    return troff(raw).text


def test_a_page_of_man() -> None:
    """Headings, paragraphs and tables; no requests, no escapes."""
    read = troff(MAN)
    assert read.fields == {"charset": "utf-8", "title": "muse - ask for a brighter heaven of invention"}
    assert read.text.split("\n\n") == [
        "NAME",
        "muse - ask for a brighter heaven of invention",
        "SYNOPSIS",
        "muse [OPTION]... [FILE]",
        "DESCRIPTION OF IT",
        "O for a Muse of fire, that would ascend the “brightest” heaven; café — don't. Only on a terminal.",
        "-a, --all all of it",
        "• one point",
        "See stage(7).",
        "one   two\n  three",
        "left\tright",
    ]


def test_a_page_of_mdoc() -> None:
    """Its macros stand among the words."""
    read = troff(MDOC)
    assert read.fields["title"] == "ssh – remote login client"
    assert read.text.split("\n\n") == [
        "NAME",
        "ssh – remote login client",
        "SYNOPSIS",
        "ssh [-46] [-b address]",
        "DESCRIPTION",
        "-4 Use IPv4 only, as ssh_config(5).",
        "-p port A “port”, or /etc/services.",
    ]


@pytest.mark.parametrize(
    ("raw", "title"),
    [
        (b".TH LS 1\n.SH DESCRIPTION\nno name\n", "LS(1)"),
        (b".TL\nA Paper\n.AU\nSomebody\n.PP\nWords.\n", "A Paper"),
        (b".so man3/isalnum.3\n", None),
    ],
)
def test_titles(raw: bytes, title: str | None) -> None:
    """By its own line of what it is, else its name and section; of a paper, its title."""
    assert troff(raw).fields.get("title") == title


def test_a_page_that_is_another() -> None:
    """Says so."""
    assert text_of(b".so man3/isalnum.3\n") == "See man3/isalnum.3"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (rb".nf" + b"\n" + rb"a \e b \s-1c\s0 \h'2n'd \f[B]e\f[] \[u00E9] \N'65' \(co", r"a \ b c d e é A ©"),
        (b"joined \\\nto one", "joined to one"),
        (b".de X\n.B no\n..\n.ig\nno\n..\nyes", "yes"),
        (b".EQ\na over b\n.EN\nyes", "yes"),
        (b".ds me Hal\nI am \\*(me and \\*[me].", "I am Hal and Hal."),
        (b"one\n\ntwo\n.br\nthree", "one\n\ntwo\nthree"),
    ],
)
def test_escapes_and_requests(raw: bytes, expected: str) -> None:
    """What they are for, as far as a text can have it."""
    assert text_of(raw) == expected


@pytest.mark.parametrize(
    ("name", "raw", "kind"),
    [
        ("man1/muse.1", MAN, TROFF),
        ("man1/muse.1.gz", MAN, TROFF),
        ("muse", MAN[MAN.index(b".TH") :], TROFF),
        ("ssh.1", MDOC, TROFF),
        ("paper.ms", b".TL\nA Paper\n", TROFF),
        ("syslog.1", b"May 1 00:00:00 globe: curtain\n", PLAIN),
        ("notes.txt", b".PP is a macro\n", PLAIN),
        ("notes.md", b".TH LS 1\n", MARKDOWN),
        ("notes", b".hidden files are not listed\n", PLAIN),
        ("notes.md.gz", b"# Title\n", MARKDOWN),
    ],
)
def test_what_is_a_manual_page(name: str, raw: bytes, kind: object) -> None:
    """By how it begins, or by its name and a request; a rotated log is none."""
    assert kind_of(raw, name) == kind


def test_strings_do_not_grow_without_end() -> None:
    """Each brings in the one before it twice."""
    names = "abcdefghijklmnopqrstuvwxyz"
    lines = [".ds a 0123456789", *(f".ds {y} \\*{x}\\*{x}" for x, y in itertools.pairwise(names)), "\\*z"]
    assert len(text_of("\n".join(lines).encode())) <= 200


def test_whatever_the_bytes_it_is_read_or_refused() -> None:
    """Cut, mixed and repeated pages raise nothing else."""
    draw = random.Random(1)
    for _ in range(200):
        pieces = [MAN, MDOC][draw.randrange(2)].splitlines(keepends=True)
        raw = b"".join(draw.choices(pieces, k=30))
        at = draw.randrange(len(raw))
        read = troff(raw[:at] + bytes([draw.randrange(256)]) + raw[at:])
        assert isinstance(read.text, str)


@pytest.mark.rule("step.manual-pages")
def test_a_folder_of_manual_pages(tmp_path: Path) -> None:
    """Compressed, as systems have them."""
    (tmp_path / "man1").mkdir()
    (tmp_path / "man1" / "muse.1.gz").write_bytes(gzip.compress(MAN))
    (tmp_path / "man1" / "ssh.1").write_bytes(MDOC)
    plan = Plan("pages")
    out = Recorder(tmp_path / "out.jsonl")
    plan.source("pages", Files(tmp_path / "man1")).step("text", extract_text()).destination("out", out)
    summary = run_plan(plan, tmp_path / "state")
    assert (summary.delivered, summary.rejected) == (2, 0)


def test_extract_text_says_what_it_was() -> None:
    """And keeps what the page says of itself."""
    doc = extract_text()(Document("muse.1.gz", raw=MAN))
    assert isinstance(doc, Document)
    assert doc["content_type"] == "text/troff"
    assert doc["title"] == "muse - ask for a brighter heaven of invention"
