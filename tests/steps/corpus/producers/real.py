"""Files that the programs themselves have written, and what a person sees in them when they are opened there.

Those of LibreOffice are the files of ``office`` that it was given, saved again (``soffice --convert-to``), that of Chromium
is a page of ``pages``, printed. pdfTeX had pictures of letters for its fonts, in T1. The others are made by libraries.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.steps.corpus.producers import FILES, Sample


class _Seen(NamedTuple):
    """What a person sees in a file."""

    producer: str
    text: str
    unread: tuple[str, ...] = ()
    wrong: tuple[str, str] = ("", "")
    """A word, and what is read in its place."""


_LETTER: Final = (
    "Harbour rules The ferry leaves at nine. Timetable {hyphen}2024 edition 1. Buy a ticket 2. Keep it dry Port Time "
    "Ostend 09:00 Captain: Ann"
)
_SAILINGS: Final = "Sailings Port First sailing Ostend {date} 1234.5 東京 1235.5 line one line two TRUE"
_TOUR: Final = "Harbour tour Leaves at nine daily Deep in a group Speak slowly"

_FILES: Final = {
    "libreoffice.docx": _Seen("LibreOffice", _LETTER.format(hyphen="-") + " In winter at ten. Still true?"),
    "libreoffice.odt": _Seen(
        "LibreOffice",
        "Harbour rules The ferry leaves at nine. In winter at ten. Timetable \u20112024 edition Still true? 1. Buy a "
        "ticket 2. Keep it dry Port Time Ostend 09:00 Captain: Ann",
    ),
    "libreoffice.rtf": _Seen(
        "LibreOffice",
        _LETTER.format(hyphen="\u2011").replace("Timetable", "Timetable (https://example.org)")
        + " In winter at ten. Still true?",
    ),
    # Changes that are tracked are printed, what is deleted too; the marks of the note are 1.
    "libreoffice.pdf": _Seen(
        "LibreOffice",
        "Harbour rules The ferry leaves at nineeight. 1 Timetable -2024 edition 1. Buy a ticket 2. Keep it dry Port "
        "Time Ostend 09:00 Captain: Ann 1In winter at ten.",
    ),
    "libreoffice.ods": _Seen(
        "LibreOffice", _SAILINGS.format(date="5/1/2024") + " #N/A B2: Check the date Notes The quay is long"
    ),
    "libreoffice.xls": _Seen(
        "LibreOffice", _SAILINGS.format(date="2024-05-01") + " #N/A Notes The quay is long Check the date"
    ),
    "libreoffice.xlsx": _Seen(
        "LibreOffice", _SAILINGS.format(date="2024-05-01") + " #N/A B2: Check the date Notes The quay is long"
    ),
    "libreoffice.odp": _Seen("LibreOffice", _TOUR),
    "libreoffice.pptx": _Seen("LibreOffice", _TOUR),
    "python-docx.docx": _Seen(
        "python-docx",
        "Harbour Times The ferry leaves at nine. 1. Buy a ticket 2. Keep it dry rope Port Time Ostend Port of Ostend",
    ),
    "python-pptx.pptx": _Seen("python-pptx", "Harbour tour Leaves at nine daily Port Speak slowly"),
    "openpyxl.xlsx": _Seen("openpyxl", "Sailings Port Time Ostend 2024-05-01T09:30:00 0.5 A2: Check this Empty"),
    "xlsxwriter.xlsx": _Seen("XlsxWriter", "Sailings Port a bold word 2 Chart of ferries On the quay"),
    "chromium.pdf": _Seen(
        "Chromium", "Home About Harbour The ferry leaves at… nine. Daily. if (a < b) { sail(); } one two"
    ),
    "pdftex.pdf": _Seen(
        "pdfTeX",
        "1 Harbour The official office offers a fluffy coffee; the ferry leaves at nine, and an internationalization "
        "committee of considerable responsibilities waits. a 2 + b 2 = c 2 Żółć über façade.1 1. Buy a ticket 1 In "
        "winter at ten. 1",
        ("characters",),
        ("Żółć", "\x9bóª¢"),
    ),
}


def samples() -> list[Sample]:
    return [
        Sample(
            name,
            seen.producer,
            (FILES / name).read_bytes(),
            seen.text,
            unread=seen.unread,
            read=seen.text.replace(*seen.wrong) if seen.wrong[0] else "",
        )
        for name, seen in _FILES.items()
    ]
