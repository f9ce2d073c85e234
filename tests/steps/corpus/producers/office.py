"""Office files as Word, Google Docs, the Open XML SDK, Excel, Numbers and PowerPoint write them."""

from __future__ import annotations

from typing import Final

from tests.steps import corpus
from tests.steps.corpus.producers import Sample

PACKAGE: Final = "http://schemas.openxmlformats.org/package/2006"
OFFICE: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
W: Final = (
    'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
    f'xmlns:r="{OFFICE}" xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" '
    'xmlns:w14="http://schemas.microsoft.com/office/word/2010/wordml" xmlns:v="urn:schemas-microsoft-com:vml" '
    'xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
)
A: Final = (
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    f'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" xmlns:r="{OFFICE}"'
)
S: Final = f'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" xmlns:r="{OFFICE}"'
TYPE: Final = "application/vnd.openxmlformats-officedocument."
XML: Final = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\r\n'


def relations(*listed: tuple[str, str, str], external: tuple[str, str] = ("", "")) -> str:
    each = "".join(f'<Relationship Id="{i}" Type="{OFFICE}/{kind}" Target="{target}"/>' for i, kind, target in listed)
    if external[0]:
        each += (
            f'<Relationship Id="{external[0]}" Type="{OFFICE}/hyperlink" Target="{external[1]}" TargetMode="External"/>'
        )
    return f'{XML}<Relationships xmlns="{PACKAGE}/relationships">{each}</Relationships>'


def types(**parts: str) -> str:
    """[Content_Types].xml: part, with two underscores for a slash and none for its ending -> type."""
    each = "".join(
        f'<Override PartName="/{part.replace("__", "/")}.xml" ContentType="{TYPE}{kind}+xml"/>'
        for part, kind in parts.items()
    )
    return (
        f'{XML}<Types xmlns="{PACKAGE}/content-types"><Default Extension="rels" ContentType="application/vnd.'
        f'openxmlformats-package.relationships+xml"/><Default Extension="xml" ContentType="application/xml"/>{each}'
        "</Types>"
    )


def run(text: str, more: str = "") -> str:
    return f'<w:r w:rsidRPr="00A1B2C3">{more}<w:t xml:space="preserve">{text}</w:t></w:r>'


def paragraph(*runs: str, style: str = "", numbers: str = "") -> str:
    style = f'<w:pStyle w:val="{style}"/>' if style else ""
    numbers = f'<w:numPr><w:ilvl w:val="0"/><w:numId w:val="{numbers}"/></w:numPr>' if numbers else ""
    return f'<w:p w:rsidR="00D4E5F6" w14:paraId="1A2B3C4D"><w:pPr>{style}{numbers}</w:pPr>{"".join(runs)}</w:p>'


def table(*rows: tuple[str, ...]) -> str:
    lines = (f"<w:tr>{''.join(f'<w:tc><w:tcPr/>{paragraph(run(cell))}</w:tc>' for cell in row)}</w:tr>" for row in rows)
    return f"<w:tbl><w:tblPr/><w:tblGrid/>{''.join(lines)}</w:tbl>"


NUMBERING: Final = (
    f'<w:numbering {W}><w:abstractNum w:abstractNumId="0"><w:lvl w:ilvl="0"><w:start w:val="1"/>'
    '<w:numFmt w:val="decimal"/><w:lvlText w:val="%1."/></w:lvl></w:abstractNum>'
    '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num></w:numbering>'
)
STYLES: Final = (
    f'<w:styles {W}><w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/><w:pPr>'
    '<w:outlineLvl w:val="0"/></w:pPr></w:style></w:styles>'
)


def word() -> bytes:
    """Words in several runs, a field, a text box in two forms, a change that is tracked, notes, a comment."""
    box = paragraph(run("Gate B"))
    body = [
        paragraph(run("Harbour "), '<w:proofErr w:type="spellStart"/>', run("ru"), run("les"), style="Heading1"),
        paragraph(
            run("The ferry leaves at "),
            f'<w:ins w:id="1" w:author="A" w:date="2024-05-01T10:00:00Z">{run("nine")}</w:ins>',
            '<w:del w:id="2" w:author="A"><w:r><w:delText>eight</w:delText></w:r></w:del>',
            run("."),
            '<w:r><w:footnoteReference w:id="2"/></w:r>',
        ),
        paragraph(
            '<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText> HYPERLINK "https://example.org" '
            '</w:instrText></w:r><w:r><w:fldChar w:fldCharType="separate"/></w:r>',
            run("Timetable"),
            '<w:r><w:fldChar w:fldCharType="end"/></w:r>',
            "<w:r><w:tab/></w:r><w:r><w:noBreakHyphen/></w:r>",
            run("2024"),
            '<w:commentRangeStart w:id="0"/>',
            run(" edition"),
            '<w:commentRangeEnd w:id="0"/><w:r><w:commentReference w:id="0"/></w:r>',
        ),
        paragraph(run("Buy a ticket"), numbers="1"),
        paragraph(run("Keep it dry"), numbers="1"),
        table(("Port", "Time"), ("Ostend", "09:00")),
        paragraph(
            "<w:r><mc:AlternateContent><mc:Choice Requires='wps'><w:drawing><wps:txbx><w:txbxContent>"
            f"{box}</w:txbxContent></wps:txbx></w:drawing></mc:Choice><mc:Fallback><w:pict><v:textbox><w:txbxContent>"
            f"{box}</w:txbxContent></v:textbox></w:pict></mc:Fallback></mc:AlternateContent></w:r>"
        ),
        paragraph(f"<w:sdt><w:sdtContent>{run('Captain: Ann')}</w:sdtContent></w:sdt>"),
        '<w:sectPr><w:headerReference w:type="default" r:id="h"/></w:sectPr>',
    ]
    note = '<w:footnote w:type="separator" w:id="-1"><w:p><w:r><w:separator/></w:r></w:p></w:footnote>'
    parts = {
        "[Content_Types].xml": types(
            word__document="wordprocessingml.document.main",
            word__styles="wordprocessingml.styles",
            word__numbering="wordprocessingml.numbering",
            word__footnotes="wordprocessingml.footnotes",
            word__comments="wordprocessingml.comments",
            word__header1="wordprocessingml.header",
        ),
        "_rels/.rels": relations(("rId1", "officeDocument", "word/document.xml")),
        "word/document.xml": f"{XML}<w:document {W} mc:Ignorable='w14'><w:body>{''.join(body)}</w:body></w:document>",
        "word/_rels/document.xml.rels": relations(
            *(("s", "styles", "styles.xml"), ("n", "numbering", "numbering.xml"), ("f", "footnotes", "footnotes.xml")),
            *(("c", "comments", "comments.xml"), ("h", "header", "header1.xml")),
        ),
        "word/styles.xml": STYLES,
        "word/numbering.xml": NUMBERING,
        "word/footnotes.xml": f"<w:footnotes {W}>{note}<w:footnote w:id='2'>{paragraph(run('In winter at ten.'))}"
        "</w:footnote></w:footnotes>",
        "word/comments.xml": f"<w:comments {W}><w:comment w:id='0' w:author='Ann' w:initials='A'>"
        f"{paragraph(run('Still true?'))}</w:comment></w:comments>",
        "word/header1.xml": f"<w:hdr {W}>{paragraph(run('Port of Ostend'))}</w:hdr>",
    }
    return corpus.zipped(parts)


def google_docs() -> bytes:
    """Names of parts as Google has them; a bookmark at each heading; a bullet list; no relationship to settings."""
    body = [
        paragraph(
            '<w:bookmarkStart w:id="0" w:name="_a1"/><w:bookmarkEnd w:id="0"/>', run("Harbour"), style="Heading1"
        ),
        paragraph(
            run("Le bac part à neuf heures 🚢. "), '<w:hyperlink r:id="rId6">', run("Horaires"), "</w:hyperlink>"
        ),
        paragraph('<w:r><w:t>first line</w:t><w:br w:type="textWrapping"/><w:t>second line</w:t></w:r>'),
        table(("Port", "Heure"), ("Ostende", "9 h")),
    ]
    return corpus.zipped(
        {
            "word/numbering.xml": NUMBERING,
            "word/styles.xml": STYLES,
            "word/_rels/document.xml.rels": relations(
                ("rId1", "numbering", "numbering.xml"),
                ("rId2", "styles", "styles.xml"),
                external=("rId6", "https://example.org/a?b=1&amp;c=2"),
            ),
            "word/document.xml": f"{XML}<w:document {W}><w:body>{''.join(body)}</w:body></w:document>",
            "_rels/.rels": relations(("rId1", "officeDocument", "word/document.xml")),
            "[Content_Types].xml": types(
                word__document="wordprocessingml.document.main",
                word__styles="wordprocessingml.styles",
                word__numbering="wordprocessingml.numbering",
            ),
        }
    )


def open_xml_sdk() -> bytes:
    """The main part's type is the default of its ending; the prefix of the namespace is ``x``; no styles at all."""
    body = "<x:p><x:r><x:t>The ferry leaves at nine.</x:t></x:r></x:p>"
    main = f"{TYPE}wordprocessingml.document.main+xml"
    return corpus.zipped(
        {
            "word/document.xml": '<?xml version="1.0" encoding="utf-8"?><x:document xmlns:x='
            f'"http://schemas.openxmlformats.org/wordprocessingml/2006/main"><x:body>{body}</x:body></x:document>',
            "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Type="{OFFICE}/officeDocument" '
            'Target="/word/document.xml" Id="R1" /></Relationships>',
            "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types"><Default Extension="xml" ContentType="{main}"'
            ' /><Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml" />'
            "</Types>",
        }
    )


def excel() -> bytes:
    """Shared strings with rich text and a reading of Japanese, a date, a percentage, a formula, a merged cell, an
    error, a second sheet, and a comment."""
    strings = [
        "<si><t>Port</t></si>",
        '<si><t xml:space="preserve">First sailing</t></si>',
        "<si><r><t>Ost</t></r><r><rPr><b/></rPr><t>end</t></r></si>",
        '<si><t>東京</t><rPh sb="0" eb="2"><t>トウキョウ</t></rPh><phoneticPr fontId="1"/></si>',
        "<si><t>line one\nline two</t></si>",
    ]
    rows = [
        '<row r="1" spans="1:3"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>1</v></c></row>',
        '<row r="2"><c r="A2" t="s"><v>2</v></c><c r="B2" s="1"><v>45413</v></c><c r="C2"><v>1234.5</v></c></row>',
        '<row r="3"><c r="A3" t="s"><v>3</v></c><c r="C3"><f>SUM(C2,1)</f><v>1235.5</v></c></row>',
        '<row r="5"><c r="A5" t="s"><v>4</v></c><c r="B5" t="b"><v>1</v></c><c r="C5" t="e"><v>#N/A</v></c></row>',
    ]
    parts = {
        "[Content_Types].xml": types(
            xl__workbook="spreadsheetml.sheet.main",
            xl__worksheets__sheet1="spreadsheetml.worksheet",
            xl__worksheets__sheet2="spreadsheetml.worksheet",
            xl__sharedStrings="spreadsheetml.sharedStrings",
            xl__styles="spreadsheetml.styles",
            xl__comments1="spreadsheetml.comments",
        ),
        "_rels/.rels": relations(("rId1", "officeDocument", "xl/workbook.xml")),
        "xl/workbook.xml": f'{XML}<workbook {S}><workbookPr/><sheets><sheet name="Sailings" sheetId="1" r:id="rId1"/>'
        '<sheet name="Notes" sheetId="7" r:id="rId2"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": relations(
            *(("rId1", "worksheet", "worksheets/sheet1.xml"), ("rId2", "worksheet", "worksheets/sheet2.xml")),
            *(("rId3", "sharedStrings", "sharedStrings.xml"), ("rId4", "styles", "styles.xml")),
        ),
        "xl/sharedStrings.xml": f"{XML}<sst {S} count='5' uniqueCount='5'>{''.join(strings)}</sst>",
        "xl/styles.xml": f'<styleSheet {S}><cellXfs count="2"><xf numFmtId="0"/><xf numFmtId="14" applyNumberFormat="1"/>'
        "</cellXfs></styleSheet>",
        "xl/worksheets/sheet1.xml": f'{XML}<worksheet {S}><dimension ref="A1:C5"/><sheetData>{"".join(rows)}</sheetData>'
        '<mergeCells count="1"><mergeCell ref="A1:B1"/></mergeCells></worksheet>',
        "xl/worksheets/_rels/sheet1.xml.rels": relations(("c", "comments", "../comments1.xml")),
        "xl/comments1.xml": f'<comments {S}><authors><author>Ann</author></authors><commentList><comment ref="B2" '
        'authorId="0"><text><r><t>Check the date</t></r></text></comment></commentList></comments>',
        "xl/worksheets/sheet2.xml": f'<worksheet {S}><sheetData><row r="1"><c r="A1" t="inlineStr"><is><t>The quay is '
        "long</t></is></c></row></sheetData></worksheet>",
    }
    return corpus.zipped(parts)


def numbers() -> bytes:
    """Exported by Numbers: a sheet for each table, named after both; its title is its first cell."""
    sheet = (
        f'<worksheet {S}><sheetData><row r="1"><c r="A1" t="s"><v>0</v></c></row><row r="2"><c r="A2" t="s"><v>1</v></c>'
        '<c r="B2"><v>9</v></c></row></sheetData></worksheet>'
    )
    parts = {
        "[Content_Types].xml": types(
            xl__workbook="spreadsheetml.sheet.main",
            xl__sharedStrings="spreadsheetml.sharedStrings",
            xl__worksheets__sheet1="spreadsheetml.worksheet",
        ),
        "_rels/.rels": relations(("rId1", "officeDocument", "xl/workbook.xml")),
        "xl/workbook.xml": f'<workbook {S}><sheets><sheet name="Sheet 1 - Table 1" sheetId="1" r:id="rId4"/></sheets>'
        "</workbook>",
        "xl/_rels/workbook.xml.rels": relations(
            ("rId1", "sharedStrings", "sharedStrings.xml"), ("rId4", "worksheet", "worksheets/sheet1.xml")
        ),
        "xl/sharedStrings.xml": f"<sst {S}><si><t>Table 1</t></si><si><t>Ostend</t></si></sst>",
        "xl/worksheets/sheet1.xml": sheet,
    }
    return corpus.zipped(parts)


def google_sheets() -> bytes:
    """Formats of its own, also for money; an index with leading zeros; a column of prices; no relations of a sheet."""
    codes = ("0.00%", "[$$]#,##0.00", "00000", "#,##0")
    cells = (
        '<c r="A1" s="0" t="s"><v>0</v></c><c r="B1" s="1"><v>0.075</v></c>',
        '<c r="A2" s="0" t="s"><v>1</v></c><c r="B2" s="2"><v>1234.5</v></c>',
        '<c r="A3" s="0" t="s"><v>2</v></c><c r="B3" s="3"><v>8400.0</v></c>',
        '<c r="A4" s="0" t="s"><v>3</v></c><c r="B4" s="4"><f>SUM(1,2)</f><v>1200000.0</v></c>',
    )
    formats = "".join(f'<numFmt numFmtId="{164 + n}" formatCode="{code}"/>' for n, code in enumerate(codes))
    styles = "".join(f'<xf numFmtId="{164 + n}" applyNumberFormat="1"/>' for n in range(len(codes)))
    parts = {
        "[Content_Types].xml": types(
            xl__workbook="spreadsheetml.sheet.main",
            xl__worksheets__sheet1="spreadsheetml.worksheet",
            xl__sharedStrings="spreadsheetml.sharedStrings",
            xl__styles="spreadsheetml.styles",
        ),
        "_rels/.rels": relations(("rId1", "officeDocument", "xl/workbook.xml")),
        "xl/workbook.xml": f'{XML}<workbook {S}><workbookPr/><sheets><sheet state="visible" name="Fares" sheetId="1" '
        'r:id="rId4"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": relations(
            ("rId2", "styles", "styles.xml"),
            ("rId3", "sharedStrings", "sharedStrings.xml"),
            ("rId4", "worksheet", "worksheets/sheet1.xml"),
        ),
        "xl/sharedStrings.xml": f"{XML}<sst {S} count='4' uniqueCount='4'><si><t>Tax</t></si><si><t>Cabin</t></si><si><t>Port"
        "</t></si><si><t>Passengers</t></si></sst>",
        "xl/styles.xml": f'{XML}<styleSheet {S}><numFmts count="4">{formats}</numFmts><cellStyleXfs count="1"><xf/>'
        f'</cellStyleXfs><cellXfs count="5"><xf numFmtId="0"/>{styles}</cellXfs></styleSheet>',
        "xl/worksheets/sheet1.xml": f"{XML}<worksheet {S}><sheetData>"
        + "".join(f'<row r="{n}">{row}</row>' for n, row in enumerate(cells, 1))
        + "</sheetData></worksheet>",
    }
    return corpus.zipped(parts)


def google_slides() -> bytes:
    """A numbered list with another in it, whose numbers are not in its text; a list with bullets."""

    def item(text: str, marker: str, level: int = 0) -> str:
        return f'<a:p><a:pPr marL="457200" lvl="{level}" indent="-317500">{marker}</a:pPr>{drawn(text)}</a:p>'

    number, letter = '<a:buAutoNum type="arabicPeriod"/>', '<a:buAutoNum type="alphaLcPeriod"/>'
    listed = item("Buy a ticket", number) + item("at the quay", letter, 1) + item("on board", letter, 1)
    listed += item("Keep it dry", number) + item("Bring a coat", '<a:buChar char="●"/>')
    body = shape("", "body").replace("<a:p></a:p>", listed)
    parts = {
        "[Content_Types].xml": types(
            ppt__presentation="presentationml.presentation.main",
            ppt__slides__slide1="presentationml.slide",
            ppt__slideLayouts__slideLayout1="presentationml.slideLayout",
            ppt__slideMasters__slideMaster1="presentationml.slideMaster",
        ),
        "_rels/.rels": relations(("rId1", "officeDocument", "ppt/presentation.xml")),
        "ppt/presentation.xml": f'{XML}<p:presentation {A}><p:sldIdLst><p:sldId id="256" r:id="rId5"/></p:sldIdLst>'
        "</p:presentation>",
        "ppt/_rels/presentation.xml.rels": relations(("rId5", "slide", "slides/slide1.xml")),
        "ppt/slides/slide1.xml": tree("sld", shape(drawn("Rules"), "title"), body),
        "ppt/slides/_rels/slide1.xml.rels": relations(("rId1", "slideLayout", "../slideLayouts/slideLayout1.xml")),
    }
    return corpus.zipped(parts | MASTER)


def shape(text: str, kind: str = "") -> str:
    """A shape with one paragraph of runs and breaks; a placeholder of a kind."""
    place = f'<p:ph type="{kind}"/>' if kind else ""
    return (
        f'<p:sp><p:nvSpPr><p:cNvPr id="2" name="Shape 1"/><p:cNvSpPr/><p:nvPr>{place}</p:nvPr></p:nvSpPr><p:spPr/><p:txBody>'
        f"<a:bodyPr/><a:lstStyle/><a:p>{text}</a:p></p:txBody></p:sp>"
    )


def drawn(text: str) -> str:
    return f'<a:r><a:rPr lang="en-US"/><a:t>{text}</a:t></a:r>'


def tree(kind: str, *shapes: str) -> str:
    """A slide or its notes."""
    group = '<p:nvGrpSpPr><p:cNvPr id="1" name=""/><p:cNvGrpSpPr/><p:nvPr/></p:nvGrpSpPr><p:grpSpPr/>'
    return f"{XML}<p:{kind} {A}><p:cSld><p:spTree>{group}{''.join(shapes)}</p:spTree></p:cSld></p:{kind}>"


MASTER: Final = {
    "ppt/slideLayouts/slideLayout1.xml": tree("sldLayout", shape(drawn("Click to edit the title"), "title")),
    "ppt/slideLayouts/_rels/slideLayout1.xml.rels": relations(
        ("rId1", "slideMaster", "../slideMasters/slideMaster1.xml")
    ),
    "ppt/slideMasters/slideMaster1.xml": tree("sldMaster", shape(drawn("Click to edit the title"), "title")),
    "ppt/slideMasters/_rels/slideMaster1.xml.rels": relations(
        ("rId1", "slideLayout", "../slideLayouts/slideLayout1.xml")
    ),
}
"""Parts of a presentation that its slides are made by; what they say is not shown."""


def powerpoint() -> bytes:
    """A title in two runs, a line break, a table, a group in a group, and notes."""
    cells = "".join(
        f"<a:tc><a:txBody><a:bodyPr/><a:lstStyle/><a:p>{drawn(t)}</a:p></a:txBody><a:tcPr/></a:tc>"
        for t in ("Port", "Time")
    )
    group = '<p:nvGrpSpPr><p:cNvPr id="7" name="Group"/><p:cNvGrpSpPr/><p:nvPr/></p:nvGrpSpPr><p:grpSpPr/>'
    table = (
        '<p:graphicFrame><p:nvGraphicFramePr><p:cNvPr id="4" name="Table 3"/><p:cNvGraphicFramePr/><p:nvPr/>'
        '</p:nvGraphicFramePr><p:xfrm><a:off x="0" y="0"/><a:ext cx="9" cy="9"/></p:xfrm><a:graphic><a:graphicData uri='
        '"http://schemas.openxmlformats.org/drawingml/2006/table"><a:tbl><a:tblPr/><a:tblGrid><a:gridCol w="9"/><a:gridCol '
        f'w="9"/></a:tblGrid><a:tr h="9">{cells}</a:tr></a:tbl></a:graphicData></a:graphic></p:graphicFrame>'
    )
    slide = tree(
        "sld",
        shape(drawn("Harbour") + drawn(" tour"), "title"),
        shape(f"{drawn('Leaves at nine')}<a:br/>{drawn('daily')}"),
        table,
        f"<p:grpSp>{group}<p:grpSp>{group}{shape(drawn('Deep in a group'))}</p:grpSp></p:grpSp>",
    )
    parts = {
        "[Content_Types].xml": types(
            ppt__presentation="presentationml.presentation.main",
            ppt__slides__slide1="presentationml.slide",
            ppt__slideLayouts__slideLayout1="presentationml.slideLayout",
            ppt__slideMasters__slideMaster1="presentationml.slideMaster",
            ppt__notesSlides__notesSlide1="presentationml.notesSlide",
        ),
        "_rels/.rels": relations(("rId1", "officeDocument", "ppt/presentation.xml")),
        "ppt/presentation.xml": f'{XML}<p:presentation {A}><p:sldIdLst><p:sldId id="256" r:id="rId2"/></p:sldIdLst>'
        "</p:presentation>",
        "ppt/_rels/presentation.xml.rels": relations(("rId2", "slide", "slides/slide1.xml")),
        "ppt/slides/slide1.xml": slide,
        "ppt/slides/_rels/slide1.xml.rels": relations(
            ("rId1", "notesSlide", "../notesSlides/notesSlide1.xml"),
            ("rId2", "slideLayout", "../slideLayouts/slideLayout1.xml"),
        ),
        "ppt/notesSlides/notesSlide1.xml": tree("notes", shape(drawn("Speak slowly"), "body")),
    }
    return corpus.zipped(parts | MASTER)


def samples() -> list[Sample]:
    return [
        Sample(
            "word.docx",
            "Word",
            word(),
            "Harbour rules The ferry leaves at nine. Timetable\t-2024 edition 1. Buy a ticket 2. Keep it dry Port Time "
            "Ostend 09:00 Gate B Captain: Ann Port of Ostend In winter at ten. Still true?",
        ),
        Sample(
            "google.docx",
            "Google Docs",
            google_docs(),
            "Harbour Le bac part à neuf heures 🚢. Horaires first line second line Port Heure Ostende 9 h",
        ),
        Sample("sdk.docx", "Open XML SDK", open_xml_sdk(), "The ferry leaves at nine."),
        Sample(
            "excel.xlsx",
            "Excel",
            excel(),
            "Sailings Port First sailing Ostend 2024-05-01 1234.5 東京 1235.5 line one line two TRUE #N/A "
            "B2: Check the date Notes The quay is long",
        ),
        Sample(
            "sheets.xlsx",
            "Google Sheets",
            google_sheets(),
            "Fares Tax 7.50% Cabin $1,234.50 Port 08400 Passengers 1,200,000",
        ),
        Sample(
            "slides.pptx",
            "Google Slides",
            google_slides(),
            "Rules 1. Buy a ticket a. at the quay b. on board 2. Keep it dry Bring a coat",
        ),
        Sample("numbers.xlsx", "Numbers", numbers(), "Sheet 1 - Table 1 Table 1 Ostend 9"),
        Sample(
            "powerpoint.pptx",
            "PowerPoint",
            powerpoint(),
            "Harbour tour Leaves at nine daily Port Time Deep in a group Speak slowly",
        ),
    ]
