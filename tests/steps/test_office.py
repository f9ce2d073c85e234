"""``extract_text`` of Office and OpenDocument files: parts beside the body, other producers, and what is not read."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from ferryman import limits, steps
from ferryman.document import Document
from ferryman.errors import BadDocument
from ferryman.steps import formats
from ferryman.steps.formats import DOCX, ODS, ODT, PPTX, XLSX, Content, kind_of, load_reader
from tests.steps import corpus

REPORTS = corpus.FILES.parent / "reports"

OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
STRICT = "http://purl.oclc.org/ooxml/officeDocument/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
NAMES = " ".join(
    [
        'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"',
        'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"',
        'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"',
        'xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart"',
        'xmlns:dgm="http://schemas.openxmlformats.org/drawingml/2006/diagram"',
        'xmlns:v="urn:schemas-microsoft-com:vml"',
        f'xmlns:r="{OFFICE}"',
    ]
)
SHEET = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
TYPES = {
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml",
    "docm": "application/vnd.ms-word.document.macroEnabled.main+xml",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation.main+xml",
    "ppsx": "application/vnd.openxmlformats-officedocument.presentationml.slideshow.main+xml",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml",
    "xltm": "application/vnd.ms-excel.template.macroEnabled.main+xml",
    "xlsb": "application/vnd.ms-excel.sheet.binary.macroEnabled.main",
}
Parts = dict[str, str | bytes]


def relations(*listed: tuple[str, str, str], base: str = OFFICE) -> str:
    """Relationships: id, last word of the type, target."""
    each = (f'<Relationship Id="{id_}" Type="{base}/{kind}" Target="{target}"/>' for id_, kind, target in listed)
    return f'<Relationships xmlns="{PACKAGE}/relationships">{"".join(each)}</Relationships>'


def rels_of(part: str) -> str:
    folder, _, name = part.rpartition("/")
    return f"{folder}/_rels/{name}.rels".lstrip("/")


def package(kind: str, main: str, parts: Parts, default: bool = False, root: str = OFFICE) -> bytes:
    """A package whose main part is found as the standard says; its type is that of its ending, or its own."""
    stated = f'<Default Extension="xml" ContentType="{TYPES[kind]}"/>'
    if not default:
        stated = f'<Override PartName="/{main}" ContentType="{TYPES[kind]}"/>'
    head: Parts = {
        "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">{stated}</Types>',
        "_rels/.rels": relations(("r1", "officeDocument", main), base=root),
    }
    return corpus.zipped(head | parts)


def paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def drawn(text: str) -> str:
    return f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>"


def docx(
    body: str, *listed: tuple[str, str, str], main: str = "word/document.xml", more: Parts | None = None, **how: Any
) -> bytes:
    parts: Parts = {
        main: f"<w:document {NAMES}><w:body>{body}</w:body></w:document>",
        rels_of(main): relations(*listed),
    }
    return package(how.pop("kind", "docx"), main, parts | (more or {}), **how)


def pptx(
    slide: str, *listed: tuple[str, str, str], more: Parts | None = None, kind: str = "pptx", folder: str = "ppt"
) -> bytes:
    main = f"{folder}/presentation.xml"
    parts: Parts = {
        main: f'<p:presentation {NAMES}><p:sldIdLst><p:sldId id="256" r:id="r1"/></p:sldIdLst></p:presentation>',
        rels_of(main): relations(("r1", "slide", "slides/slide1.xml")),
        f"{folder}/slides/slide1.xml": f"<p:sld {NAMES}><p:cSld><p:spTree>{slide}</p:spTree></p:cSld></p:sld>",
        rels_of(f"{folder}/slides/slide1.xml"): relations(*listed),
    }
    return package(kind, main, parts | (more or {}))


def text_cell(place: str, text: str) -> str:
    return f'<c r="{place}" t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>'


def xlsx(
    rows: str = "<row r='1'><c r='A1'><v>7</v></c></row>",
    *listed: tuple[str, str, str],
    main: str = "xl/workbook.xml",
    sheet: str = "worksheets/sheet1.xml",
    more: Parts | None = None,
    after: str = "",
    **how: Any,
) -> bytes:
    folder = main.rpartition("/")[0]
    part = f"{folder}/{sheet}".lstrip("/")
    parts: Parts = {
        main: f'<workbook {SHEET} xmlns:r="{OFFICE}"><sheets><sheet name="One" sheetId="1" r:id="r1"/>'
        "</sheets></workbook>",
        rels_of(main): relations(("r1", "worksheet", sheet), *how.pop("book", ())),
        part: f"<worksheet {SHEET}><sheetData>{rows}</sheetData>{after}</worksheet>",
        rels_of(part): relations(*listed),
    }
    return package(how.pop("kind", "xlsx"), main, parts | (more or {}), **how)


def changed(raw: bytes, rename: Callable[[str], str]) -> bytes:
    """The package with other names of its parts, but the same content."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        return corpus.zipped({rename(name): archive.read(name) for name in archive.namelist()})


def content_of(raw: bytes, name: str = "x") -> Content:
    content = load_reader(kind_of(raw, name).reader)(raw)
    content.text = formats.clean(content.text)
    return content


def report(name: str) -> Content:
    return content_of((REPORTS / name).read_bytes())


# -- packages of other producers -------------------------------------------------------------------

HEAD = paragraph("Head")
FIRST = f"<p:sp><p:txBody>{drawn('First')}</p:txBody></p:sp>"


@pytest.mark.parametrize(
    ("raw", "kind", "text"),
    [
        ((REPORTS / "sdk.docx").read_bytes(), DOCX, "The ferry leaves at nine."),
        (docx(HEAD, default=True, main="doc/main.xml"), DOCX, "Head"),
        (docx(HEAD, kind="docm", main="word/document2.xml"), DOCX, "Head"),
        (docx(HEAD, root=STRICT), DOCX, "Head"),
        (docx(HEAD, main="document.xml"), DOCX, "Head"),
        (pptx(FIRST, folder="PowerPoint"), PPTX, "First"),
        (pptx(FIRST, kind="ppsx"), PPTX, "First"),
        (xlsx(default=True, main="book/book.xml"), XLSX, "One\n7"),
        (xlsx(kind="xltm"), XLSX, "One\n7"),
        (xlsx(main="workbook.xml", sheet="sheet%201.xml", more={"sheet 1.xml": f"<worksheet {SHEET}/>"}), XLSX, "One"),
        (xlsx(sheet="../sheets/a.xml"), XLSX, "One"),
    ],
    ids=[
        "report",
        "default",
        "macros",
        "strict",
        "no folder",
        "other folder",
        "show",
        "sheet",
        "template",
        "escaped",
        "dots",
    ],
)
def test_the_main_part_is_found_as_the_standard_says(raw: bytes, kind: formats.ContentKind, text: str) -> None:
    """By the relationships of the package, whatever its folder; its kind by its content type."""
    assert kind_of(raw) == kind
    assert content_of(raw).text.startswith(text)


@pytest.mark.parametrize(
    "rename",
    [str.upper, str.lower, lambda name: name.replace("/", "\\"), lambda name: "/" + name, lambda name: "\\" + name],
    ids=["upper", "lower", "backslashes", "slash before", "backslash before"],
)
@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (
            docx(
                HEAD,
                ("f", "footnotes", "notes.xml"),
                more={"word/notes.xml": f"<w:n {NAMES}>{paragraph('a note')}</w:n>"},
            ),
            "Head\n\na note",
        ),
        (pptx(FIRST), "First"),
        (xlsx("<row r='1'>" + text_cell("A1", "Muse") + "</row>"), "One\nMuse"),
    ],
    ids=["docx", "pptx", "xlsx"],
)
def test_names_of_parts_are_compared_as_office_does(raw: bytes, text: str, rename: Callable[[str], str]) -> None:
    """Without regard to case, and with backslashes; ``unpack`` leaves such a file whole."""
    other = changed(raw, rename)
    doc = Document("x", raw=other)

    assert steps.unpack()(doc) is doc
    assert content_of(other).text == text


def test_other_packages_are_named_and_stay_whole() -> None:
    """Visio's and Apple's: as members of an archive they would be dozens of documents."""
    visio = package("docx", "visio/document.xml", {"visio/document.xml": "<v/>"})
    visio = visio_of(visio)
    apple = corpus.zipped({"Index/Document.iwa": b"\0", "Metadata/Properties.plist": b"x"})
    for raw, what in ((visio, "a Visio drawing"), (apple, "an Apple iWork document")):
        doc = Document("x", raw=raw)
        assert steps.unpack()(doc) is doc
        with pytest.raises(BadDocument, match=f"it is {what}, of which no text is read. Export it as PDF"):
            steps.extract_text()(doc)


def visio_of(raw: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    types = parts["[Content_Types].xml"].replace(TYPES["docx"].encode(), b"application/vnd.ms-visio.drawing.main+xml")
    return corpus.zipped(parts | {"[Content_Types].xml": types})


def test_archives_are_no_packages() -> None:
    """A zip with a folder of the same name is one, if it states no content types."""
    assert kind_of(corpus.zipped({"word/a.txt": "a"})) == formats.ZIP
    assert kind_of(corpus.zipped({"[Content_Types].xml": "<Types/>", "lib/a.dll": "a"})) == formats.ZIP


def test_a_package_without_relationships_is_read_by_its_content_types() -> None:
    """As some programs and all of our older tests make it."""
    assert content_of(corpus.docx()).text.endswith("a note")
    bare = changed(xlsx(), lambda name: name.replace("_rels/.rels", "other.xml"))
    assert content_of(bare).text == "One\n7"


# -- what stands beside the body -------------------------------------------------------------------

LETTER = "The whole letter is here."


def inserting(name: str, content: str | bytes) -> bytes:
    return docx(
        HEAD + '<w:altChunk r:id="c"/>' + paragraph("End"), ("c", "aFChunk", name), more={f"word/{name}": content}
    )


@pytest.mark.parametrize(
    "raw",
    [
        inserting("a.html", f"<p>{LETTER}</p>"),
        inserting("a.mht", f"From: a\nSubject: b\nMIME-Version: 1.0\nContent-Type: text/html\n\n<p>{LETTER}</p>"),
        inserting("a.rtf", "{\\rtf1 " + LETTER + "}"),
        inserting("a.txt", LETTER),
        inserting("a.docx", docx(paragraph(LETTER))),
        inserting("a.docx", inserting("b.html", LETTER).replace(b"Head", b"")),
    ],
    ids=["HTML", "MHTML", "RTF", "text", "DOCX", "DOCX in DOCX"],
)
def test_inserted_documents_are_read_in_their_place(raw: bytes) -> None:
    """An ``altChunk`` may be all that there is of a document that a program has put together."""
    blocks = content_of(raw).text.split("\n\n")
    assert (blocks[0], LETTER in blocks, blocks[-1]) == ("Head", True, "End")
    assert report("altchunk.docx").text == f"Head\n\n{LETTER}"


def test_inserted_documents_that_are_not_read_are_named() -> None:
    """Pictures, documents that are not there, and a document that inserts itself time and again."""
    picture, missing = (
        inserting("a.png", b"\x89PNG\r\n\x1a\n"),
        docx(HEAD + '<w:altChunk r:id="c"/>', ("c", "aFChunk", "a.html")),
    )
    nested = docx(HEAD)
    for _ in range(5):
        nested = inserting("a.docx", nested)
    for raw in (picture, missing, nested):
        assert content_of(raw).fields["unread"] == ["inserted documents"]


DIAGRAM = f"<dgm:dataModel {NAMES}><dgm:ptLst><dgm:pt><dgm:t>{drawn('Load the ferry')}</dgm:t></dgm:pt>"
DIAGRAM += "</dgm:ptLst></dgm:dataModel>"
GRAPHIC = "<a:graphic><a:graphicData>{}</a:graphicData></a:graphic>"
RELIDS, CHART = GRAPHIC.format('<dgm:relIds r:dm="d" r:lo="l"/>'), GRAPHIC.format('<c:chart r:id="d"/>')
CHART_PART = (
    f"<c:chartSpace {NAMES}><c:chart><c:title><c:tx><c:rich>{drawn('Tonnage')}</c:rich></c:tx></c:title><c:ser>"
    "<c:cat><c:strRef><c:strCache><c:pt><c:v>May</c:v></c:pt><c:pt><c:v>June</c:v></c:pt></c:strCache></c:strRef></c:cat>"
    "<c:val><c:numCache><c:pt><c:v>41</c:v></c:pt></c:numCache></c:val></c:ser></c:chart></c:chartSpace>"
)


@pytest.mark.parametrize(
    ("make", "before"),
    [
        (
            lambda graphic, *listed, more: docx(
                f"{HEAD}<w:p><w:r><w:drawing>{graphic}</w:drawing></w:r></w:p>", *listed, more=more
            ),
            "Head",
        ),
        (
            lambda graphic, *listed, more: pptx(
                f"{FIRST}<p:graphicFrame>{graphic}</p:graphicFrame>", *listed, more=more
            ),
            "First",
        ),
    ],
    ids=["docx", "pptx"],
)
@pytest.mark.parametrize(
    ("graphic", "kind", "content", "text"),
    [(RELIDS, "diagramData", DIAGRAM, "Load the ferry"), (CHART, "chart", CHART_PART, "Tonnage\n\nMay\tJune")],
    ids=["SmartArt", "chart"],
)
def test_diagrams_and_charts_are_read_in_their_place(
    make: Callable[..., bytes], before: str, graphic: str, kind: str, content: str, text: str
) -> None:
    """Texts, titles, the names of categories; without its part a diagram is named as unread."""
    more: Parts = {"word/d.xml": content, "ppt/slides/d.xml": content}
    assert content_of(make(graphic, ("d", kind, "d.xml"), more=more)).text == f"{before}\n\n{text}"
    what = "diagrams" if kind == "diagramData" else "charts"
    assert content_of(make(graphic, ("d", kind, "d.xml"), more={})).fields["unread"] == [what]
    assert report("smartart.pptx").text == "Plan\n\nLoad the ferry"


def test_wordart_and_headers_of_a_document() -> None:
    """A watermark is text, too; the same header on first and other pages is one."""
    header = f"<w:hdr {NAMES}>{paragraph('Confidential')}</w:hdr>"
    mark = (
        f'<w:hdr {NAMES}><w:p><w:r><w:pict><v:shape><v:textpath string="DRAFT"/></v:shape></w:pict></w:r></w:p></w:hdr>'
    )
    listed = [
        ("1", "header", "h1.xml"),
        ("2", "header", "h2.xml"),
        ("3", "header", "h3.xml"),
        ("4", "comments", "c.xml"),
    ]
    comments = f"<w:comments {NAMES}><w:comment>{paragraph('Really?')}</w:comment></w:comments>"
    more: Parts = {"word/h1.xml": header, "word/h2.xml": header, "word/h3.xml": mark, "word/c.xml": comments}
    assert content_of(docx(HEAD, *listed, more=more)).text == "Head\n\nConfidential\n\nDRAFT\n\nReally?"
    assert content_of(docx(HEAD, *listed)).fields["unread"] == ["headers", "comments"]


@pytest.mark.parametrize(
    "make", [docx, pptx, lambda _, *listed: xlsx(*(listed and ["", *listed]))], ids=["docx", "pptx", "xlsx"]
)
@pytest.mark.parametrize("kind", ["package", "oleObject"])
def test_embedded_files_are_named(make: Callable[..., bytes], kind: str) -> None:
    """A workbook in a letter is a file of its own, which nobody reads."""
    assert content_of(make("", ("e", kind, "embeddings/a.xlsx"))).fields["unread"] == ["embedded files"]
    assert "unread" not in content_of(make("")).fields


@pytest.mark.parametrize("make", [docx, pptx], ids=["docx", "pptx"])
def test_a_document_of_pictures_is_named(make: Callable[..., bytes]) -> None:
    """A scan that was put into Word."""
    assert content_of(make("", more={"word/media/image1.png": b"x"})).fields["unread"] == ["pictures"]
    assert "unread" not in content_of(make(HEAD + FIRST, more={"word/media/image1.png": b"x"})).fields


def test_comments_notes_and_masters_of_slides() -> None:
    """Comments of both kinds; what a master shows on each slide, once, without its placeholders."""
    old = f"<p:cmLst {NAMES}><p:cm><p:text>Too loud</p:text></p:cm></p:cmLst>"
    new = f"<n:cmLst xmlns:n='x' {NAMES}><n:cm><n:txBody>{drawn('Agreed')}</n:txBody></n:cm></n:cmLst>"
    shapes = f"<p:sp><p:txBody>{drawn('Ferry Ltd.')}</p:txBody></p:sp>"
    shapes += f"<p:sp><p:nvSpPr><p:ph/></p:nvSpPr><p:txBody>{drawn('Click to edit')}</p:txBody></p:sp>"
    listed = [
        ("1", "comments", "../c1.xml"),
        ("2", "comments", "../c2.xml"),
        ("3", "notesSlide", "../n.xml"),
        ("4", "slideLayout", "../l.xml"),
    ]
    more: Parts = {
        "ppt/c1.xml": old,
        "ppt/c2.xml": new,
        "ppt/n.xml": f"<p:notes {NAMES}>{drawn('Speak up')}</p:notes>",
        "ppt/l.xml": f"<p:sldLayout {NAMES}/>",
        rels_of("ppt/l.xml"): relations(("m", "slideMaster", "m.xml")),
        "ppt/m.xml": f"<p:sldMaster {NAMES}>{shapes}</p:sldMaster>",
    }
    assert content_of(pptx(FIRST, *listed, more=more)).text == "First\n\nToo loud\n\nAgreed\n\nSpeak up\n\nFerry Ltd."


def test_slides_that_are_missing_are_named() -> None:
    raw = changed(pptx(FIRST), lambda name: name.replace("slide1.xml", "slide9.xml"))
    assert content_of(raw).fields["unread"] == ["slides"]


# -- tables and sheets -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "torn", ["first_x000D_\nsecond", "first\n\nsecond", "first\tsecond", "first\r\nsecond", "first\u2028second"]
)
def test_rows_are_not_torn(torn: str) -> None:
    """Whatever white space is in a cell, its row is one line."""
    content = content_of(xlsx("<row r='1'>" + text_cell("A1", torn) + text_cell("B1", "7") + "</row>"))
    assert content.text == "One\nfirst second\t7"
    assert report("r.xlsx").text == "One\nfirst second\t7\nnext"


@pytest.mark.parametrize("between", ["<w:br/>", "<w:tab/>", "<w:cr/>"])
def test_rows_of_a_table_are_not_torn(between: str) -> None:
    cell = f"<w:tc><w:p><w:r><w:t>one</w:t>{between}<w:t>two</w:t></w:r></w:p></w:tc>"
    raw = docx(f"<w:tbl><w:tr>{cell}<w:tc>{paragraph('three')}</w:tc></w:tr></w:tbl>")
    assert content_of(raw).text == "one two\tthree"


def test_control_characters_of_drawings_are_line_ends() -> None:
    """PowerPoint escapes the vertical tab of a title; Word means what it writes."""
    assert content_of(pptx(drawn("Two_x000B_lines"))).text == "Two\nlines"
    assert content_of(docx(paragraph("Two_x000B_lines"))).text == "Two_x000B_lines"


NOTE = (
    '<comments {}><commentList><comment ref="B2"><text><r><t>check </t></r><r><t>this</t></r></text></comment>'
    "</commentList></comments>"
)
THREAD = '<Threads xmlns="t"><threadedComment ref="{}"><text>Agreed?</text></threadedComment></Threads>'


@pytest.mark.parametrize(
    ("kind", "content", "text"),
    [
        ("comments", NOTE.format(SHEET), "B2: check this"),
        (
            "threadedComment",
            THREAD.format("A1"),
            "A1: Agreed?",
        ),
        (
            "drawing",
            f'<xdr:wsDr xmlns:xdr="x" {NAMES}><xdr:sp><xdr:txBody>{drawn("in a box")}</xdr:txBody></xdr:sp></xdr:wsDr>',
            "in a box",
        ),
    ],
    ids=["comment", "thread", "shape"],
)
def test_comments_and_shapes_follow_their_sheet(kind: str, content: str, text: str) -> None:
    """Comments with their cell."""
    raw = xlsx("<row r='1'><c r='A1'><v>7</v></c></row>", ("1", kind, "../beside.xml"), more={"xl/beside.xml": content})
    assert content_of(raw).text == f"One\n7\n\n{text}"
    assert report("comment.xlsx").text == "Data\n7\n\nA1: check this price"


def test_a_thread_is_not_read_twice() -> None:
    """Excel writes it again, for its older versions."""
    thread = THREAD.format("B2")
    old = NOTE.format(SHEET).replace("check ", "[Threaded comment] Your version of Excel: ")
    listed = [("1", "comments", "../c.xml"), ("2", "threadedComment", "../t.xml")]
    raw = xlsx("<row r='1'><c r='A1'><v>7</v></c></row>", *listed, more={"xl/c.xml": old, "xl/t.xml": thread})
    assert content_of(raw).text == "One\n7\n\nB2: Agreed?"


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("&amp;L&amp;&quot;Arial,Bold&quot;&amp;12Confidential &amp;&amp; secret", "Confidential & secret"),
        ("&amp;CPage &amp;P", ""),
        ("&amp;RK&amp;K00FF00een", "K een"),
    ],
)
def test_headers_of_a_sheet(header: str, text: str) -> None:
    """Without their codes; the number of a page is not text."""
    raw = xlsx(after=f"<headerFooter><oddHeader>{header}</oddHeader></headerFooter>")
    assert content_of(raw).text == f"One\n7\n\n{text}".strip()


def test_sheets_that_are_missing_are_named() -> None:
    raw = changed(xlsx(), lambda name: name.replace("worksheets/sheet1.xml", "worksheets/sheet9.xml"))
    assert (content_of(raw).text, content_of(raw).fields["unread"]) == ("One", ["sheets"])


def test_shared_strings_in_another_place() -> None:
    """calamine looks for them in one."""
    strings = f"<sst {SHEET}><si><t>Muse</t></si></sst>"
    rows = '<row r="1"><c r="A1" t="s"><v>0</v></c></row>'
    raw = xlsx(rows, main="b/book.xml", book=[("s", "sharedStrings", "strings.xml")], more={"b/strings.xml": strings})
    assert content_of(raw).text == "One\nMuse"


# -- OpenDocument ----------------------------------------------------------------------------------

ODF = (
    " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for name in ("office", "text", "table", "style", "presentation")
    )
    + ' xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0" xmlns:dc="http://purl.org/dc/elements/1.1/"'
)


def odf(kind: formats.ContentKind, body: str, masters: str = "", **more: str) -> bytes:
    parts: Parts = {
        "mimetype": kind.type,
        "content.xml": f"<office:document-content {ODF}><office:body>{body}</office:body></office:document-content>",
        "styles.xml": f"<office:document-styles {ODF}><office:master-styles>{masters}</office:master-styles>"
        "</office:document-styles>",
    }
    return corpus.zipped(parts | more)


def ods(rows: str, name: str = "Plays", masters: str = "") -> bytes:
    return odf(
        ODS, f'<office:spreadsheet><table:table table:name="{name}">{rows}</table:table></office:spreadsheet>', masters
    )


def row(*cells: str, repeated: int = 1) -> str:
    return f'<table:table-row table:number-rows-repeated="{repeated}">{"".join(cells)}</table:table-row>'


def cell(text: str = "", repeated: int = 1, **values: str) -> str:
    stated = "".join(f' office:{name.replace("_", "-")}="{value}"' for name, value in values.items())
    inner = f"<text:p>{text}</text:p>" if text else ""
    return f'<table:table-cell table:number-columns-repeated="{repeated}"{stated}>{inner}</table:table-cell>'


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (row(cell("7", 3), cell("8")), "7\t7\t7\t8"),
        (row(cell("7"), cell("", 2), cell("8"), cell("", 16000)), "7\t\t\t8"),
        (row(cell("7"), repeated=3) + row(cell("", 16384), repeated=1_000_000), "7\n7\n7"),
        (row(cell("7"), "<table:covered-table-cell/>", cell("8")), "7\t\t8"),
        (
            row(cell("", value_type="float", value="42"), cell("", value_type="date", date_value="2024-05-01")),
            "42\t2024-05-01",
        ),
        (row(cell("one</text:p><text:p>two"), cell("8")), "one two\t8"),
        (row(cell("one<text:line-break/>two"), cell("8")), "one two\t8"),
        (
            "<table:table-header-rows>" + row(cell("Year")) + "</table:table-header-rows>" + row(cell("1600")),
            "Year\n1600",
        ),
    ],
    ids=["repeated", "gap", "rows", "covered", "values", "paragraphs", "line break", "header rows"],
)
def test_cells_of_a_sheet_are_where_they_are(rows: str, text: str) -> None:
    """Cells and rows that are written once and stand for many; the sheet has its name before it."""
    content = content_of(ods(rows))
    assert content.text == f"Plays\n{text}"
    assert content.fields["pages"] == 1


@pytest.mark.parametrize(
    "rows",
    [
        row(cell("7"), repeated=999_999_999),
        row(cell("7", 30_000), repeated=1000),
        row(cell("x" * 1000), repeated=100_000),
        row(cell("7", 999_999_999)),
    ],
)
def test_repeated_cells_have_a_limit(rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kilobyte of XML may stand for terabytes."""
    with pytest.raises(BadDocument, match=f"span more than {limits.EXTRACT_CELLS} cells"):
        steps.extract_text()(Document("x.ods", raw=ods(rows)))


def test_a_digit_run_is_no_count() -> None:
    """What cannot be a count is one."""
    assert content_of(ods(row(cell("7", 10**40)))).text == "Plays\n7"
    assert content_of(ods(row(cell("7")).replace('repeated="1"', 'repeated="-3"'))).text == "Plays\n7"


def test_comments_and_shapes_of_a_sheet_follow_it() -> None:
    """Not in the row of their cell."""
    comment = cell("7").replace(
        "<text:p>", "<office:annotation><dc:creator>Ann</dc:creator><text:p>why</text:p></office:annotation><text:p>"
    )
    shapes = (
        "<table:shapes><draw:frame><draw:text-box><text:p>in a box</text:p></draw:text-box></draw:frame></table:shapes>"
    )
    raw = ods(shapes + row(cell("", 27)) + row(cell("6", 27), comment, cell("8")))
    assert content_of(raw).text == "Plays\n" + "6\t" * 27 + "7\t8\n\nin a box\n\nAB2: why"


def test_two_sheets_alike_are_both_there() -> None:
    table = f'<table:table table:name="Same">{row(cell("7"))}</table:table>'
    assert content_of(odf(ODS, f"<office:spreadsheet>{table}{table}</office:spreadsheet>")).text == "Same\n7\n\nSame\n7"


MASTER = '<style:master-page style:name="{}"><style:{}><text:p>{}</text:p></style:{}></style:master-page>'


@pytest.mark.parametrize("kind", ["header", "footer", "header-left", "footer-first"])
def test_headers_and_footers_of_a_text(kind: str) -> None:
    """Of all pages, each once; a field in one is as it was last."""
    masters = MASTER.format("Standard", kind, "Header words", kind) + MASTER.format("First", kind, "Header words", kind)
    raw = odf(ODT, "<office:text><text:p>Body</text:p></office:text>", masters)
    assert content_of(raw).text == "Body\n\nHeader words"
    assert report("header.odt").text == "Body\n\nHeader words"


@pytest.mark.parametrize(
    ("master", "text"),
    [
        (MASTER.format("Default", "header", "Confidential", "header"), "Confidential"),
        (MASTER.format("Default", "header", "<text:sheet-name>???</text:sheet-name>", "header"), ""),
        (MASTER.format("Default", "footer", "Page <text:page-number>1</text:page-number>", "footer"), ""),
        (
            MASTER.format("Default", "footer", "Ferry Ltd., page <text:page-number>1</text:page-number>", "footer"),
            "Ferry Ltd., page",
        ),
        (MASTER.format("Report", "header", "Not used", "header"), ""),
        (
            MASTER.format("Default", "header", "Hidden", "header").replace(
                "<style:header>", '<style:header style:display="false">'
            ),
            "",
        ),
    ],
    ids=["text", "name", "page", "text and page", "unused", "hidden"],
)
def test_headers_of_a_spreadsheet(master: str, text: str) -> None:
    """Not the placeholders that each file has from the beginning."""
    assert content_of(ods(row(cell("7")), masters=master)).text == f"Plays\n7\n\n{text}".strip()


def test_masters_of_slides() -> None:
    """What a master shows; footers that slides declare."""
    assert content_of(corpus.shipped()["testMasterFooter.odp"]).text == "Master footer is here"
    box = "<draw:frame{}><draw:text-box><text:p>{}</text:p></draw:text-box></draw:frame>"
    footer = '<presentation:footer-decl presentation:name="f">Ferry Ltd.</presentation:footer-decl>'
    page = f"<draw:page>{box.format('', 'First')}</draw:page>"
    body = f"<office:presentation>{footer}{page}</office:presentation>"
    frame = box.format(' presentation:placeholder="true"', "Click to edit")
    raw = odf(formats.ODP, body, f'<style:master-page style:name="Default">{frame}</style:master-page>')
    assert content_of(raw).text == "First\n\nFerry Ltd."


def test_rows_of_a_table_in_a_text_are_not_torn() -> None:
    """Its cells repeat, too."""
    body = f"<office:text><table:table>{row(cell('one<text:tab/>two', 2), cell('three'))}</table:table></office:text>"
    assert content_of(odf(ODT, body)).text == "one two\tone two\tthree"


@pytest.mark.parametrize("kind", ["object", "object-ole"])
def test_objects_in_a_text_are_named(kind: str) -> None:
    """A chart or a formula is a document of its own in it, on a slide, too; one that is empty is none."""
    href = 'xlink:href="./Object 1" xmlns:xlink="http://www.w3.org/1999/xlink"'
    frame = f"<draw:frame><draw:{kind} {href}/></draw:frame>"
    for body in (f"<office:text><text:p>One{frame}</text:p></office:text>", f"<draw:page>{frame}</draw:page>"):
        assert content_of(odf(ODT, body)).fields["unread"] == ["embedded files"]
        assert "unread" not in content_of(odf(ODT, body.replace(href, ""))).fields


@pytest.mark.timeout(120)
@pytest.mark.parametrize("piece", ["<row ", '<row r="', "<oddHeader ", "<oddHeader>", "<a:", "<", '&amp;"', "_x00"])
def test_sheets_that_are_made_to_take_long(piece: str) -> None:
    """A megabyte of the beginnings of what a sheet is searched for takes no longer than any other megabyte."""
    bad = piece * (1_000_000 // len(piece))
    assert content_of(xlsx(after=bad + "<")).text.startswith("One\n7")
    header = f"<headerFooter><oddHeader>{bad.replace('<', '&lt;')}</oddHeader></headerFooter>"
    assert content_of(xlsx(after=header)).text.startswith("One\n7")
