"""Public reports on extraction by other programs, rebuilt: each with where it was reported, and the right text."""

from __future__ import annotations

from typing import Any, Final

import pytest

from ferryman import steps
from ferryman.document import Document
from tests.steps import corpus
from tests.steps.test_mail import FERRY, message, part, parts
from tests.steps.test_numbering import NUMBERING, letter, level, line
from tests.steps.test_office import SHEET, cell, docx, drawn, ods, paragraph, pptx, row, xlsx
from tests.steps.test_outlook import code_page, listed, old_text, winmail
from tests.steps.test_outlook import message as outlook_message


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
    "joshy/striprtf#55": (
        "note.rtf",
        rb"{\rtf1\ansi Judgment normal. } \par {\b Plan:} rest\par}",
        "Judgment normal. Plan: rest",
    ),
    "joshy/striprtf#32": (
        "a.rtf",
        rb"{\rtf1 {\field{\*\fldinst { FORMTEXT }}{\fldrslt Service:}} ferry}",
        "Service: ferry",
    ),
    "firecrawl/anydoc#27": (
        "formats.xlsx",
        xlsx(
            '<row r="1"><c r="A1" s="1"><v>0.075</v></c><c r="B1" s="2"><v>1234.5</v></c><c r="C1" s="3"><v>46096</v></c></row>',
            book=[("s", "styles", "styles.xml")],
            more={
                "xl/styles.xml": f'<styleSheet {SHEET}><numFmts><numFmt numFmtId="164" formatCode="0.0%"/><numFmt numFmtId="165" '
                'formatCode="&quot;$&quot;#,##0.00"/><numFmt numFmtId="166" formatCode="mm/dd/yyyy"/></numFmts><cellXfs><xf/>'
                '<xf numFmtId="164"/><xf numFmtId="165"/><xf numFmtId="166"/></cellXfs></styleSheet>'
            },
        ),
        "One 7.5% $1,234.50 2026-03-15",
    ),
    "tafia/calamine#636": (
        "rich.xlsx",
        xlsx(
            '<row r="1"><c r="A1" t="s"><v>0</v></c></row>',
            book=[("s", "sharedStrings", "sharedStrings.xml")],
            more={
                "xl/sharedStrings.xml": f"<sst {SHEET}><si><t>tval</t><r><t>rval1</t></r><r><t>rval2</t></r></si></sst>"
            },
        ),
        "One tvalrval1rval2",
    ),
    "docling-project/docling#3847": (
        "spans.odt",
        corpus.zipped(
            {
                "mimetype": "application/vnd.oasis.opendocument.text",
                "content.xml": '<o xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"><text:p>bold<text:span><text:s/>'
                "connective prose</text:span></text:p></o>",
            }
        ),
        "bold connective prose",
    ),
    "docling-project/docling#494": (
        "form.docx",
        docx(
            "<w:tbl><w:tr><w:tc><w:tbl><w:tr><w:sdt><w:sdtContent><w:tc><w:sdt><w:sdtContent>"
            f"{paragraph('Name:')}</w:sdtContent></w:sdt></w:tc></w:sdtContent></w:sdt><w:tc>{paragraph('Ann')}</w:tc></w:tr>"
            f"</w:tbl>{paragraph('')}</w:tc></w:tr></w:tbl>"
        ),
        "Name: Ann",
    ),
    "docling-project/docling#3313": (
        "proposals.docx",
        letter(
            line("CSI is reported.", list_="1"),
            line("So is rank.", list_="1"),
            numbering=NUMBERING.replace(level(0, "decimal", "%1."), level(0, "decimal", "Proposal %1:"), 1),
        ),
        "Proposal 1: CSI is reported. Proposal 2: So is rank.",
    ),
    "VolodymyrBaydalka/docxjs#136": (
        "nested.docx",
        letter(*(line(text, list_="1", at=at) for text, at in (("a", 0), ("b", 1), ("c", 1), ("d", 0), ("e", 1)))),
        "1. a 1.1 b 1.2 c 2. d 2.1 e",
    ),
    "mwilliamson/python-mammoth#163": (
        "wps.docx",
        docx(
            '<mc:AlternateContent xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"><mc:Choice '
            f'Requires="wpsCustomData">{paragraph("in the choice")}</mc:Choice></mc:AlternateContent>{paragraph("after")}'
        ),
        "in the choice after",
    ),
    "mwilliamson/mammoth.js#230": (
        "hidden.docx",
        docx(
            "<w:p><w:r><w:t>seen</w:t></w:r><w:r><w:rPr><w:vanish/></w:rPr><w:t> hidden</w:t></w:r><w:r><w:rPr><w:vanish "
            'w:val="0"/></w:rPr><w:t> too</w:t></w:r></w:p>'
        ),
        "seen too",
    ),
    "microsoft/markitdown#1505": ("late.txt", b"plain words. " * 400 + "año".encode(), "plain words. " * 400 + "año"),
    "microsoft/markitdown#294": (
        "german.txt",
        "für künstliche Intelligenz und zur Änderung".encode("cp1252"),
        "für künstliche Intelligenz und zur Änderung",
    ),
    "adbar/trafilatura#825": (
        "a.html",
        b"<p>The <nobr>ferry leaves</nobr> at <i>nine</i>, rate -3<i>r</i>/2<wbr>, daily.<table><tr><td><p><b>GPT-5.4</b></p></td></tr></table>",
        "The ferry leaves at nine, rate -3r/2, daily. GPT-5.4",
    ),
    "agentscope-ai/agentscope#2659": (
        "groups.pptx",
        pptx(f"<p:grpSp><p:grpSp><p:sp><p:txBody>{drawn('Deep')}</p:txBody></p:sp></p:grpSp></p:grpSp>{drawn('Flat')}"),
        "Deep Flat",
    ),
    "py-pdf/pypdf#3978": (
        "tex.pdf",
        _pdf(b"BT /F1 12 Tf 50 700 Td [(The) -330 (fer) 20 (ry) -330 (lea) -15 (v) 25 (es)] TJ ET", HELVETICA),
        "The ferry leaves",
    ),
    "eea/odfpy#146": (
        "comment.ods",
        ods(row(cell("7").replace("<text:p>", "<office:annotation><text:p>why</text:p></office:annotation><text:p>"))),
        "Plays 7 A1: why",
    ),
    "chatchat-space/Langchain-Chatchat#5084": (
        "inline.eml",
        message(parts("mixed", part("text/plain", FERRY, "Content-Disposition: inline"))),
        FERRY,
    ),
    "TeamMsgExtractor/msg-extractor#95": (
        "no-encoding.msg",
        outlook_message(old_text("1000", "Größe und Gewicht für König".encode("cp1252"))),
        "Größe und Gewicht für König",
    ),
    "TeamMsgExtractor/msg-extractor#373": (
        "taiwan.msg",
        outlook_message(old_text("1000", "渡輪九點離開碁".encode("cp950")), head=code_page(950)),
        "渡輪九點離開碁",
    ),
    "martinrusev/imbox#229": (
        "winmail.dat",
        winmail((0x9003, listed(x10130102=b"<p>The body is here only.</p>")), key=0x695E),
        "The body is here only.",
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
