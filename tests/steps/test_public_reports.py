"""Public reports on extraction by other programs, rebuilt: each with where it was reported, and the right text."""

from __future__ import annotations

from typing import Any, Final

import pytest

from ferryman import steps
from ferryman.document import Document
from tests.steps import corpus
from tests.steps.test_numbering import letter, line
from tests.steps.test_office import docx, paragraph


def _run(inner: str) -> str:
    return f"<w:p><w:r><w:t>Before</w:t></w:r>{inner}<w:r><w:t>after</w:t></w:r></w:p>"


def _pdf(drawn: bytes, font: bytes, more: bytes = b"") -> bytes:
    return corpus.pdf_of(
        {
            1: b"<< /Type /Catalog /Pages 2 0 R >>",
            2: b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>",
            3: b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
            + more
            + b" /Resources << /Font "
            b"<< /F1 5 0 R >> >> >>",
            4: b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawn), drawn),
            5: font,
        }
    )


HELVETICA: Final = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
JAPANESE: Final = (
    b"<< /Type /Font /Subtype /Type0 /BaseFont /Ryumin-Light /Encoding /90ms-RKSJ-H /DescendantFonts [<< /Type /Font "
    b"/Subtype /CIDFontType0 /BaseFont /Ryumin-Light /CIDSystemInfo << /Registry (Adobe) /Ordering (Japan1) /Supplement 2 >> "
    b"/FontDescriptor << /Type /FontDescriptor /FontName /Ryumin-Light /Flags 4 /FontBBox [0 0 1000 1000] /ItalicAngle 0 "
    b"/Ascent 900 /Descent -200 /CapHeight 700 /StemV 80 >> >>] >>"
)
NONE: Final = (
    '<w:numbering xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:abstractNum '
    'w:abstractNumId="0"><w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="none"/><w:suff w:val="nothing"/>'
    '<w:lvlText w:val="%1"/></w:lvl></w:abstractNum><w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num></w:numbering>'
)

REPORTS: Final[dict[str, tuple[str, bytes, str]]] = {
    "python-openxml/python-docx#339": (
        "a.docx",
        docx(
            '<w:p><w:r><w:t>-- STA</w:t></w:r><w:smartTag w:element="PersonName"><w:r><w:t>RT</w:t></w:r></w:smartTag></w:p>'
        ),
        "-- START",
    ),
    "KevM/tikaondotnet#163": (
        "a.docx",
        docx(
            f"<w:sdt><w:sdtContent>{paragraph('A clause:')}<w:sdt><w:sdtContent>"
            "<w:p><w:sdt><w:sdtContent><w:r><w:t>within</w:t></w:r></w:sdtContent></w:sdt></w:p></w:sdtContent></w:sdt>"
            "</w:sdtContent></w:sdt>"
        ),
        "A clause: within",
    ),
    "docling-project/docling#3759": ("a.docx", letter(line("REFERENCES", "berschrift1"), numbering=NONE), "REFERENCES"),
    "docling-project/docling#2250": (
        "a.docx",
        letter(line("Warranty", "berschrift1"), line("first", list_="3"), line("second", list_="3")),
        "1. Warranty a) first b) second",
    ),
    "Unstructured-IO/unstructured#1816": (
        "teams.docx",
        docx(
            "<w:p><w:r><w:t>0:0:0.0 --&gt; 0:0:1.510</w:t><w:br/><w:t>Some Body</w:t><w:br/><w:t>OK.</w:t></w:r></w:p>"
        ),
        "0:0:0.0 --> 0:0:1.510 Some Body OK.",
    ),
    "Unstructured-IO/unstructured#1543": (
        "a.html",
        b"<html>\n<body>\nbody test\n<p>p test</p>\n<p>p test 2 <br>\np test 2 after break</p>\n</body>\n</html>",
        "body test p test p test 2 p test 2 after break",
    ),
    "Unstructured-IO/unstructured#2836": (
        "a.html",
        b"<div>from <font><ix:nonnumeric>five to</ix:nonnumeric></font> six years, and from <b>three to</b> four</div>",
        "from five to six years, and from three to four",
    ),
    "microsoft/markitdown#1512": (
        "a.docx",
        docx(
            _run(
                '<m:oMath xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"><m:f><m:num><m:r><m:t>x</m:t>'
                "</m:r></m:num><m:den><m:r><m:rPr/></m:r><m:r><m:t>y</m:t></m:r></m:den></m:f></m:oMath>"
            )
        ),
        "Beforexyafter",
    ),
    "pdfminer/pdfminer.six#592": (
        "turned.pdf",
        _pdf(b"BT /F1 12 Tf 0 1 -1 0 300 100 Tm (Licence 18002-0) Tj ET", HELVETICA, b"/Rotate 90"),
        "Licence 18002-0",
    ),
    "pdfminer/pdfminer.six#623": (
        "bold.pdf",
        _pdf(b"BT /F1 12 Tf 1 0 0 1 50 700 Tm (01/03/2021) Tj 1 0 0 1 50.3 700 Tm (01/03/2021) Tj ET", HELVETICA),
        "01/03/2021",
    ),
    "pdfminer/pdfminer.six#934": (
        "japanese.pdf",
        _pdf(b"BT /F1 12 Tf 50 700 Td <" + "東京".encode("cp932").hex().encode() + b"> Tj ET", JAPANESE),
        "東京",
    ),
    "python-openxml/python-docx#826": (
        "boxes.docx",
        docx(
            _run(
                '<w:r><w:sym w:font="Wingdings" w:char="F0FE"/><w:sym w:font="Wingdings" w:char="F0A8"/>'
                '<w:sym w:font="Wingdings 2" w:char="F052"/><w:sym w:font="Symbol" w:char="F061"/>'
                '<w:sym w:font="Segoe UI Symbol" w:char="2713"/></w:r>'
            )
        ),
        "Before☑☐☑α✓after",
    ),
}


@pytest.mark.parametrize("report", REPORTS)
def test_a_public_report_comes_out_right(report: str) -> None:
    """All of the text, in its order, and nothing else."""
    name, raw, text = REPORTS[report]
    doc: Any = steps.extract_text(languages=None)(Document(name, raw=raw))
    assert " ".join(doc.raw.decode().split()) == text
    assert doc.get("unread") is None


def test_a_symbol_that_is_not_known_is_named_as_unread() -> None:
    """Of a font of pictures: its number means nothing."""
    doc: Any = steps.extract_text()(
        Document("a.docx", raw=docx(_run('<w:r><w:sym w:font="Webdings" w:char="F048"/></w:r>')))
    )
    assert (doc.raw, doc["unread"]) == (b"Beforeafter", ["symbols"])
