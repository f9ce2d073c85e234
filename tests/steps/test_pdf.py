"""``extract_text`` of PDFs: what stands beside the text of a page, and what of one cannot be read."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from ferryman import limits, steps
from ferryman.document import Document
from ferryman.steps.formats.pdf import pdf
from tests.steps import corpus

REPORTS = corpus.FILES.parent / "reports"

FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"


def stream(content: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(content), entries, content)


def drawn(text: str, entries: bytes = b"") -> bytes:
    return stream(f"BT /F1 9 Tf 20 100 Td ({text}) Tj ET".encode(), entries)


def paged(*pages: tuple[str, bytes], root: bytes = b"", more: tuple[bytes, ...] = ()) -> bytes:
    """A PDF of pages with a text and the references of their annotations; ``more`` are objects from number 100 on."""
    first = 5
    kids = b" ".join(b"%d 0 R" % (first + 2 * n) for n in range(len(pages)))
    bodies = {
        1: b"<< /Type /Catalog /Pages 2 0 R %s >>" % root,
        2: b"<< /Type /Pages /Count %d /Kids [%s] >>" % (len(pages), kids),
        3: FONT,
    }
    for n, (text, notes) in enumerate(pages):
        bodies[first + 2 * n] = (
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents %d 0 R /Annots [%s] "
            b"/Resources << /Font << /F1 3 0 R >> /XObject << /Im 199 0 R >> >> >>"
        ) % (first + 2 * n + 1, notes)
        bodies[first + 2 * n + 1] = drawn(text) if text else stream(b"q 10 0 0 10 0 0 cm /Im Do Q")
    bodies |= dict(enumerate(more, 100))
    bodies[199] = stream(
        b"\0", b"/Type /XObject /Subtype /Image /Width 1 /Height 1 /BitsPerComponent 8 /ColorSpace /DeviceGray"
    )
    return corpus.pdf_of(bodies)


def field(kind: bytes, entries: bytes) -> bytes:
    return b"<< /Type /Annot /Subtype /Widget /FT /%s /Rect [10 10 90 30] /F 4 %s >>" % (kind, entries)


def note(kind: bytes, entries: bytes) -> bytes:
    return b"<< /Type /Annot /Subtype /%s /Rect [10 40 90 60] %s >>" % (kind, entries)


def form(*fields: bytes, page: str = "A form.") -> bytes:
    refs = b" ".join(b"%d 0 R" % n for n in range(100, 100 + len(fields)))
    return paged((page, refs), root=b"/AcroForm << /Fields [%s] /DA (/F1 9 Tf) >>" % refs, more=fields)


CHECKED = b"/V /Yes /AS /Yes /AP << /N << /Yes null /Off null >> >>"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ((REPORTS / "form.pdf").read_bytes(), "Name of the ship:\n\nAlbatros\n\ntyped remark\n\nsticky note words"),
        (form(field(b"Tx", b"/T (a) /V <FEFF004600E400680072>")), "A form.\n\nFähr"),
        (form(field(b"Ch", b"/T (a) /Ff 131072 /Opt [(one) (two)] /V (two)")), "A form.\n\ntwo"),
        (
            form(field(b"Ch", b"/T (a) /Ff 2097152 /Opt [(one) (two) (three)] /V [(one) (three)] /I [0 2]")),
            "A form.\n\none\nthree",
        ),
        (form(field(b"Btn", b"/T (insured) /TU (The cargo is insured) " + CHECKED)), "A form.\n\nThe cargo is insured"),
        (form(field(b"Btn", b"/T (insured) " + CHECKED)), "A form.\n\ninsured"),
        (form(field(b"Btn", b"/T (insured) /V /Off /AS /Off")), "A form."),
        (form(field(b"Tx", b"/T (a) /V (hidden) /F 2").replace(b"/F 4", b"")), "A form."),
        (form(field(b"Tx", b"/T (a) /V (first)"), field(b"Tx", b"/T (b) /V (second)")), "A form.\n\nfirst\n\nsecond"),
    ],
    ids=[
        "report",
        "UTF-16",
        "combo box",
        "list box",
        "check box",
        "check box without label",
        "unchecked",
        "hidden",
        "two",
    ],
)
def test_filled_fields_follow_the_text_of_their_page(raw: bytes, text: str) -> None:
    """What a person has filled in is part of the document; empty and hidden fields are not."""
    content = pdf(raw)
    assert content.text == text
    assert "unread" not in content.fields


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ([note(b"Text", b"/Contents (a remark)"), note(b"Highlight", b"/Contents (a mark)")], "a remark\n\na mark"),
        ([note(b"FreeText", b"/Contents (typed)"), note(b"Popup", b"/Contents (typed)")], "typed"),
        ([note(b"Text", b"/Contents (a remark)"), note(b"Text", b"/Contents (a remark)")], "a remark"),
        ([note(b"Link", b"/Contents (a target)")], ""),
        ([note(b"Text", b"/Contents (deleted) /F 2")], ""),
    ],
    ids=["two", "popup", "twice", "link", "hidden"],
)
def test_notes_follow_the_text_of_their_page(annotations: list[bytes], text: str) -> None:
    """Words of persons, each once; not descriptions of links."""
    refs = b" ".join(b"%d 0 R" % n for n in range(100, 100 + len(annotations)))
    content = pdf(paged(("One.", refs), ("Two.", b""), more=tuple(annotations)))
    assert content.text == "\n\n".join(part for part in ("One.", text, "Two.") if part)


def test_a_note_of_which_only_the_picture_is_there_is_unread() -> None:
    """Some programs draw a note and write no contents."""
    shape = drawn(
        "only drawn", b"/Type /XObject /Subtype /Form /BBox [0 0 90 20] /Resources << /Font << /F1 3 0 R >> >>"
    )
    content = pdf(paged(("One.", b"100 0 R"), more=(note(b"FreeText", b"/AP << /N 101 0 R >>"), shape)))
    assert content.fields["unread"] == ["notes"]


@pytest.mark.parametrize(
    ("raw", "text", "pages"),
    [
        ((REPORTS / "missing-page.pdf").read_bytes(), "first page\n\n\n\nthird page", [2]),
        (
            paged(("One.", b""), ("Two.", b""), ("Three.", b"")).replace(b"5 0 R 7 0 R 9 0 R", b"5 0 R 7 0 R 4 0 R"),
            "One.\n\nTwo.\n\n",
            [3],
        ),
        (paged(("One.", b""), ("Two.", b"")).replace(b"[5 0 R 7", b"[4 0 R 4"), "\n\n", [1, 2]),
    ],
    ids=["report", "the last", "all"],
)
def test_pages_that_are_missing_are_unread(raw: bytes, text: str, pages: list[int]) -> None:
    """They are counted among the pages, and named."""
    content = pdf(raw)
    assert (content.text, content.fields["unread"], content.fields["unread_pages"]) == (text, ["pages"], pages)


@pytest.mark.parametrize("box", [b"2147483647 0 612 792", b"0 -2147483647 300 200", b"0 0 4e9 4e9", b"0 0 9e99 1"])
def test_a_page_of_a_damaged_size_is_read(monkeypatch: pytest.MonkeyPatch, box: bytes) -> None:
    """In little memory: PDFium has a mask of each side."""
    import pypdfium2

    sizes = []
    load = pypdfium2.PdfPage.get_textpage

    def load_text(page: Any) -> Any:
        sizes.append(max(page.get_size()))
        return load(page)

    monkeypatch.setattr(pypdfium2.PdfPage, "get_textpage", load_text)
    raw = paged(("Far away.", b"")).replace(b"[0 0 300 200]", b"[%s]" % box)
    assert pdf(raw).text == "Far away."
    assert sizes[0] <= 1_000_000


def test_pages_that_are_pictures_are_unread() -> None:
    """A scan has no text; a page that is blank has none either, and nothing is lost."""
    content = pdf(paged(("One.", b""), ("", b""), ("", b"100 0 R"), more=(note(b"Text", b"/Contents (a remark)"),)))
    assert (content.fields["unread"], content.fields["unread_pages"]) == (["pages that are pictures"], [2])
    assert "unread" not in pdf(corpus.pdf([""])).fields


def embedding(*files: tuple[bytes, bytes], entries: bytes = b"") -> bytes:
    names = b" ".join(b"(%s) %d 0 R" % (name, 100 + 2 * n) for n, (name, _) in enumerate(files))
    more = []
    for n, (name, data) in enumerate(files):
        more.append(b"<< /Type /Filespec /F (%s) /EF << /F %d 0 R >> >>" % (name, 101 + 2 * n))
        more.append(stream(data, b"/Type /EmbeddedFile " + entries))
    return paged(("One.", b""), root=b"/Names << /EmbeddedFiles << /Names [%s] >> >>" % names, more=tuple(more))


def read(raw: bytes, **options: Any) -> list[Document]:
    out = steps.extract_text(**options)(Document("x.pdf", raw=raw))
    return out if isinstance(out, list) else [out]


def test_embedded_files_are_children() -> None:
    """Read by their kinds, as a mail's attachments are; so an invoice's XML is found."""
    [doc, invoice, letter] = read(embedding((b"invoice.xml", b"<i><total>42</total></i>"), (b"a.docx", corpus.docx())))
    assert (doc.text(), invoice.id, invoice.text(), invoice["file_name"]) == (
        "One.",
        "x.pdf#invoice.xml",
        "42",
        "invoice.xml",
    )
    assert corpus.MUSE in letter.text()


def test_files_attached_to_a_place_are_children() -> None:
    """Once, though the list of all has them, too."""
    more = (
        b"<< /Type /Filespec /F (a.txt) /EF << /F 101 0 R >> >>",
        stream(b"attached", b"/Type /EmbeddedFile"),
        note(b"FileAttachment", b"/FS 100 0 R /Contents (see there)"),
    )
    alone = paged(("One.", b"102 0 R"), more=more)
    listed = paged(("One.", b"102 0 R"), root=b"/Names << /EmbeddedFiles << /Names [(a) 100 0 R] >> >>", more=more)
    for raw in (alone, listed):
        [doc, file] = read(raw)
        assert (doc.text(), file.text()) == ("One.\n\nsee there", "attached")


def test_embedded_files_that_are_not_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged ones, and more than all of them may have."""
    broken = embedding((b"a.txt", b"text"), (b"b.txt", b"text")).replace(b"/EF << /F 103", b"/EF << /F 198")
    assert [(doc.id, doc.get("unread")) for doc in read(broken)] == [
        ("x.pdf", ["embedded files"]),
        ("x.pdf#a.txt", None),
    ]

    monkeypatch.setattr(limits, "EXTRACT_PART_BYTES", 100_000)
    bomb = embedding((b"a.txt", zlib.compress(bytes(200_000))), entries=b"/Filter /FlateDecode")
    [doc] = read(bomb)
    assert doc["unread"] == ["embedded files"]


def test_files_that_are_left_out_are_named() -> None:
    """With ``depth=0`` they are not read: the document says so."""
    assert [doc.get("unread") for doc in read(embedding((b"a.txt", b"text")), depth=0)] == [["attachments"]]
    assert [doc.get("unread") for doc in read(corpus.pdf(["One."]), depth=0)] == [None]


@pytest.mark.parametrize("entries", [b"/XFA [(a) 100 0 R]", b"/XFA 100 0 R", b"/XFA 100 0 R /NeedAppearances true"])
def test_a_form_in_xml_is_unread(entries: bytes) -> None:
    """Its page says "Please wait"; the form itself is XML, which PDFium does not lay out."""
    raw = paged(("Please wait", b""), root=b"/AcroForm << /Fields [] %s >>" % entries, more=(stream(b"<xdp/>"),))
    assert pdf(raw).fields["unread"] == ["XFA form"]
