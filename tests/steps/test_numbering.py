"""``extract_text`` of DOCX and OpenDocument: the numbers that are shown before paragraphs, and headings."""

from __future__ import annotations

import pytest

from ferryman import steps
from ferryman.document import Document
from ferryman.steps.formats.numbering import format_number
from tests.steps import corpus
from tests.steps.test_office import NAMES, content_of, docx, pptx

STYLES = f"""<w:styles {NAMES}>
<w:style w:type="paragraph" w:default="1" w:styleId="Standard"><w:name w:val="Normal"/></w:style>
<w:style w:type="paragraph" w:styleId="berschrift1"><w:name w:val="heading 1"/><w:basedOn w:val="Standard"/>
 <w:pPr><w:numPr><w:numId w:val="1"/></w:numPr><w:outlineLvl w:val="0"/></w:pPr></w:style>
<w:style w:type="paragraph" w:styleId="berschrift2"><w:name w:val="heading 2"/>
 <w:pPr><w:numPr><w:ilvl w:val="1"/><w:numId w:val="1"/></w:numPr></w:pPr></w:style>
<w:style w:type="paragraph" w:styleId="Own"><w:name w:val="Own chapter"/><w:basedOn w:val="berschrift2"/></w:style>
<w:style w:type="paragraph" w:styleId="Loop"><w:name w:val="Loop"/><w:basedOn w:val="Loop"/></w:style>
<w:style w:type="numbering" w:styleId="Letters"><w:name w:val="Letters"/>
 <w:pPr><w:numPr><w:numId w:val="3"/></w:numPr></w:pPr></w:style>
</w:styles>"""


def level(number: int, format_: str, label: str, more: str = "") -> str:
    return (
        f'<w:lvl w:ilvl="{number}"><w:start w:val="1"/><w:numFmt w:val="{format_}"/>{more}<w:lvlText w:val="{label}"/>'
        "</w:lvl>"
    )


BULLET = "\uf0b7"

NUMBERING = f"""<w:numbering {NAMES}>
<w:abstractNum w:abstractNumId="0">{level(0, "decimal", "%1.")}{level(1, "decimal", "%1.%2")}
 {level(2, "lowerRoman", "(%3)")}</w:abstractNum>
<w:abstractNum w:abstractNumId="1">{level(0, "bullet", BULLET)}{level(1, "upperLetter", "%2)")}</w:abstractNum>
<w:abstractNum w:abstractNumId="2">{level(0, "lowerLetter", "%1)")}</w:abstractNum>
<w:abstractNum w:abstractNumId="3"><w:numStyleLink w:val="Letters"/></w:abstractNum>
<w:abstractNum w:abstractNumId="4">{level(0, "upperRoman", "Art. %1")}
 {level(1, "decimal", "%1.%2", "<w:isLgl/>")}</w:abstractNum>
<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>
<w:num w:numId="2"><w:abstractNumId w:val="1"/></w:num>
<w:num w:numId="3"><w:abstractNumId w:val="2"/></w:num>
<w:num w:numId="4"><w:abstractNumId w:val="2"/><w:lvlOverride w:ilvl="0"><w:startOverride w:val="7"/></w:lvlOverride>
</w:num>
<w:num w:numId="5"><w:abstractNumId w:val="3"/></w:num>
<w:num w:numId="6"><w:abstractNumId w:val="4"/></w:num>
</w:numbering>"""


def line(text: str, style: str = "", list_: str = "", at: int = 0, outline: str = "") -> str:
    numbers = f'<w:numPr><w:ilvl w:val="{at}"/><w:numId w:val="{list_}"/></w:numPr>' if list_ else ""
    style = f'<w:pStyle w:val="{style}"/>' if style else ""
    outline = f'<w:outlineLvl w:val="{outline}"/>' if outline else ""
    return f"<w:p><w:pPr>{style}{numbers}{outline}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"


def letter(*lines: str, styles: str = STYLES, numbering: str = NUMBERING) -> bytes:
    return docx(
        "".join(lines),
        ("s", "styles", "styles.xml"),
        ("n", "numbering", "numbering.xml"),
        more={"word/styles.xml": styles, "word/numbering.xml": numbering},
    )


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (
            [
                line("Harbour", "berschrift1"),
                line("Times", "berschrift2"),
                line("Winter", "Own"),
                line("A", list_="1", at=2),
                line("Fares", "berschrift1"),
                line("Children", "berschrift2"),
            ],
            "1. Harbour\n1.1 Times\n1.2 Winter\n(i) A\n2. Fares\n2.1 Children",
        ),
        ([line("rope", list_="2"), line("new", list_="2", at=1), line("old", list_="2", at=1)], "rope\nA) new\nB) old"),
        ([line("one", list_="3"), line("off", list_="0"), line("two", list_="3")], "a) one\noff\nb) two"),
        ([line("one", list_="3"), line("seven", list_="4"), line("eight", list_="4")], "a) one\ng) seven\nh) eight"),
        ([line("linked", list_="5"), line("on", list_="3")], "a) linked\nb) on"),
        ([line("x", list_="6"), line("y", list_="6"), line("z", list_="6", at=1)], "Art. I x\nArt. II y\n2.1 z"),
        ([line("deep first", list_="1", at=1), line("then", list_="1")], "1.1 deep first\n1. then"),
        ([line("no style", "Missing", "99"), line("circle", "Loop"), line("plain")], "no style\ncircle\nplain"),
        ([line("Not a heading", "berschrift1", "0"), line("Heading", "berschrift1")], "Not a heading\n1. Heading"),
    ],
)
def test_numbers_of_lists_are_read_as_word_shows_them(lines: list[str], text: str) -> None:
    """By the style, the list and the level; bullets are left out."""
    assert content_of(letter(*lines)).text.replace("\n\n", "\n") == text


def test_headings_of_a_docx_are_an_outline() -> None:
    """By the level of the style, of what it is based on, or of the paragraph; in any language; not in tables."""
    lines = [
        line("Harbour", "berschrift1"),
        line("Times", "berschrift2"),
        line("Winter", "Own"),
        line("By hand", outline="4"),
        line("Body after all", "berschrift1", outline="9"),
        f"<w:tbl><w:tr><w:tc>{line('In a cell', 'berschrift1')}</w:tc></w:tr></w:tbl>",
        line("plain"),
    ]
    doc = steps.extract_text()(Document("a.docx", raw=letter(*lines)))
    assert isinstance(doc, Document)
    assert doc.outline == ((1, "1. Harbour"), (2, "1.1 Times"), (2, "1.2 Winter"), (5, "By hand"))


def test_a_docx_is_split_at_its_headings() -> None:
    """As Markdown and HTML are."""
    lines = [line("Harbour", "berschrift1"), line("words"), line("Fares", "berschrift1"), line("more")]
    doc = steps.extract_text()(Document("a.docx", raw=letter(*lines)))
    assert isinstance(doc, Document)
    parts = steps.split_text(by="headings")(doc)
    assert isinstance(parts, list)
    texts = [(part.raw or b"").decode() for part in parts if part.parent_id]
    assert texts == ["1. Harbour\n\nwords", "2. Fares\n\nmore"]


def test_a_docx_without_styles_or_with_broken_numbers_is_read() -> None:
    """Attributes that are not numbers, or out of range, stand for nothing."""
    odd = NUMBERING.replace('w:val="1"', 'w:val="-1"').replace('w:ilvl="2"', 'w:ilvl="99"').replace('"%2)"', '"%9"')
    lines = [
        line("one", list_="1"),
        line("two", list_="1", at=77),
        line("three", list_="2", at=1),
        line("x", outline="x"),
    ]
    assert "two" in content_of(letter(*lines, numbering=odd)).text
    assert content_of(docx(line("one", "berschrift1", "1"))).text == "one"


@pytest.mark.parametrize(
    ("number", "format_", "shown"),
    [
        (1, "decimal", "1"),
        (3, "decimalZero", "03"),
        (27, "lowerLetter", "aa"),
        (53, "upperLetter", "AAA"),
        (1994, "upperRoman", "MCMXCIV"),
        (0, "lowerRoman", "0"),
        (4000, "upperRoman", "4000"),
        (5, "none", ""),
        (5, "japaneseCounting", "5"),
    ],
)
def test_numbers_have_their_formats(number: int, format_: str, shown: str) -> None:
    assert format_number(number, format_) == shown


# -- slides ----------------------------------------------------------------------------------------------------------


def point(text: str, marker: str = "", at: int = 0) -> str:
    return f'<a:p><a:pPr lvl="{at}">{marker}</a:pPr><a:r><a:t>{text}</a:t></a:r></a:p>'


def auto(kind: str = "arabicPeriod", start: str = "") -> str:
    start = f' startAt="{start}"' if start else ""
    return f'<a:buAutoNum type="{kind}"{start}/>'


@pytest.mark.parametrize(
    ("points", "text"),
    [
        ([point("one", auto()), point("two", auto())], "1. one\n2. two"),
        ([point("one", auto()), point("in", auto("alphaLcParenR"), 1), point("two", auto())], "1. one\na) in\n2. two"),
        ([point("one", auto()), point("plain"), point("one", auto())], "1. one\nplain\n1. one"),
        ([point("one", auto()), point("", auto()), point("two", auto())], "1. one\n2. two"),
        ([point("one", auto()), point("bullet", '<a:buChar char="•"/>')], "1. one\nbullet"),
        (
            [point("five", auto("romanUcParenBoth", "5")), point("six", auto("romanUcParenBoth", "5"))],
            "(V) five\n(VI) six",
        ),
        ([point("one", auto("arabicPlain")), point("x", auto("circleNumDbPlain"))], "1 one\n1 x"),
        ([point("by the shape"), point("not", "<a:buNone/>"), point("again")], "A. by the shape\nnot\nA. again"),
        ([point("odd", auto("x", "y")), point("odd", auto(), -1)], "1. odd\n1. odd"),
    ],
)
def test_numbers_of_lists_on_slides(points: list[str], text: str) -> None:
    """Each shape counts for itself, each level in it, until a paragraph without number."""
    style = (
        f"<a:lstStyle><a:lvl1pPr>{auto('alphaUcPeriod')}</a:lvl1pPr></a:lstStyle>"
        if "by the shape" in points[0]
        else ""
    )
    shape = f"<p:sp><p:txBody>{style}{''.join(points)}</p:txBody></p:sp>"
    assert content_of(pptx(shape + shape)).text.replace("\n\n", "\n") == f"{text}\n{text}"


# -- OpenDocument --------------------------------------------------------------------------------------------------

ODF = " ".join(
    f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "text", "style")
)
LISTS = f"""<office:styles {ODF}>
<text:list-style style:name="L1">
 <text:list-level-style-number text:level="1" style:num-format="1" style:num-suffix="."/>
 <text:list-level-style-number text:level="2" style:num-format="a" style:num-suffix=")"/>
 <text:list-level-style-number text:level="3" style:num-format="1" text:display-levels="3"/></text:list-style>
<text:list-style style:name="L2"><text:list-level-style-bullet text:level="1" text:bullet-char="•"/></text:list-style>
{{outline}}</office:styles>"""
OUTLINE = """<text:outline-style style:name="Outline">
<text:outline-level-style text:level="1" style:num-format="I" style:num-suffix="."/>
<text:outline-level-style text:level="2" style:num-format="1" text:display-levels="2"/></text:outline-style>"""


def odt(body: str, outline: str = "") -> bytes:
    return corpus.zipped(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "styles.xml": LISTS.format(outline=outline),
            "content.xml": f"<office:document {ODF}><office:body><office:text>{body}</office:text></office:body>"
            "</office:document>",
        }
    )


def item(text: str, *inner: str, start: str = "") -> str:
    start = f' text:start-value="{start}"' if start else ""
    return f"<text:list-item{start}><text:p>{text}</text:p>{''.join(inner)}</text:list-item>"


def items(*each: str, style: str = "L1", more: str = "") -> str:
    named = f' text:style-name="{style}"' if style else ""
    return f"<text:list{named}{more}>{''.join(each)}</text:list>"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (items(item("one", items(item("in"), item("on"), style="")), item("two")), "1. one\na) in\nb) on\n2. two"),
        (items(item("one"), style="L1") + items(item("again")), "1. one\n1. again"),
        (items(item("one")) + items(item("on"), more=' text:continue-numbering="true"'), "1. one\n2. on"),
        (items(item("five", start="5"), item("six")), "5. five\n6. six"),
        (items(item("rope"), style="L2"), "rope"),
        (items(item("a", items(item("b", items(item("c"), style="")), style=""))), "1. a\na) b\n1.a.1 c"),
        (items("<text:list-header><text:p>head</text:p></text:list-header>", item("one")), "head\n1. one"),
        (items(item("one</text:p><text:p>more")), "1. one\nmore"),
        (items(item("x"), style="unknown"), "x"),
    ],
)
def test_numbers_of_lists_in_opendocument(body: str, text: str) -> None:
    """By the list's style and level; a list in a list has the style of the one around it."""
    assert content_of(odt(body)).text.replace("\n\n", "\n") == text


def test_headings_of_opendocument_are_an_outline() -> None:
    """With their numbers, if they have some."""
    body = "".join(
        f'<text:h text:outline-level="{at}">{text}</text:h><text:p>words</text:p>'
        for at, text in ((1, "Harbour"), (2, "Times"), (2, "Fares"), (1, "Ships"))
    )
    assert content_of(odt(body)).outline == [(1, "Harbour"), (2, "Times"), (2, "Fares"), (1, "Ships")]
    numbered = content_of(odt(body, OUTLINE))
    assert numbered.outline == [(1, "I. Harbour"), (2, "I.1 Times"), (2, "I.2 Fares"), (1, "II. Ships")]
    assert numbered.text.startswith("I. Harbour\n\nwords\n\nI.1 Times")


def test_a_text_that_was_a_web_page_is_an_odt() -> None:
    """So LibreOffice writes what it has read from HTML; a drawing is named."""
    raw = odt("<text:p>words</text:p>").replace(b"opendocument.text", b"opendocument.text", 1)
    web = corpus.zipped(
        {"mimetype": "application/vnd.oasis.opendocument.text-web", "content.xml": "<a><p>words</p></a>"}
    )
    assert content_of(raw).text == "words"
    doc = steps.extract_text()(Document("a.odt", raw=web))
    assert isinstance(doc, Document)
    assert doc["content_type"] == "application/vnd.oasis.opendocument.text"
    drawing = corpus.zipped({"mimetype": "application/vnd.oasis.opendocument.graphics", "content.xml": "<a/>"})
    with pytest.raises(Exception, match="it is an OpenDocument drawing or formula"):
        steps.extract_text()(Document("a.odg", raw=drawing))
