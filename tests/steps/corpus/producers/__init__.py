"""Files as the programs write them that people use, with the text that a person sees in them.

Those in ``files/`` were written by the programs themselves, see ``real``. The others are made here, as far as the habits of
the programs are documented. The content of all is our own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

FILES: Final = Path(__file__).parent / "files"


class Sample(NamedTuple):
    """A file.

    Attributes:
        name: its name, whose ending tells its format.
        producer: the program that writes such a file.
        text: what a person sees in it, in any order of blanks and lines; of attachments too.
        head: what a person sees of a mail besides its text, such as its subject; fields have it.
        unread: what is not read, as the field ``unread`` names it.
        read: what is read, where that is another text, and ``unread`` says so.
    """

    name: str
    producer: str
    raw: bytes
    text: str
    head: str = ""
    unread: tuple[str, ...] = ()
    read: str = ""


def samples() -> list[Sample]:
    """Return all of them, by format."""
    from tests.steps.corpus.producers import mails, office, pages, real

    found = [*office.samples(), *mails.samples(), *pages.samples(), *real.samples()]
    return sorted(found, key=lambda each: (each.name.rpartition(".")[2], each.producer, each.name))
