"""HTML and XML: whole words, cells in their columns, headings, and the encodings of the bytes."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from ferryman import steps
from ferryman.document import Document
from ferryman.errors import BadDocument
from tests.steps import corpus

REPORTS = Path(__file__).parent / "corpus" / "reports"


def extract(raw: str | bytes, name: str = "a.html") -> Document:
    content = raw.encode() if isinstance(raw, str) else raw
    doc = steps.extract_text(languages=None)(Document(name, raw=content))
    assert isinstance(doc, Document)
    return doc


@pytest.mark.parametrize(
    ("inside", "wanted"),
    [
        ("<p>Hel<hi>lo</hi> H<sub>2</sub>O</p>", "Hello H2O"),
        ("<d><p>un<hi>break</hi>able</p><p>the <b>ferry</b> leaves</p></d>", "unbreakable\nthe ferry leaves"),
        ("<d><p>Dr<i>. </i><name>Who</name>, 9<x/>th</p><name>Ann</name></d>", "Dr. Who, 9th\nAnn"),
        ("<d><t>A</t><t>B</t><u> C </u></d>", "A\nB\nC"),
        ("<d>intro <p>one</p><p>two</p></d>", "intro\none\ntwo"),
        ("<d>a<!-- x -->b<?x y?>c</d>", "abc"),
        ("<d><row><c>1</c><c>2</c></row><row><c>3</c></row></d>", "1\n2\n3"),
        ("<d><![CDATA[a<b]]>&amp;<b>c</b></d>", "a<b&c"),
        ('<d xmlns:t="u"><t:p>a<t:hi>b</t:hi></t:p><t:p>c</t:p></d>', "ab\nc"),
    ],
)
def test_elements_within_a_line_split_no_words(inside: str, wanted: str) -> None:
    assert extract(f'<?xml version="1.0"?>{inside}', "a.xml").text() == wanted


def test_reported_xml() -> None:
    assert extract((REPORTS / "inline.xml").read_bytes(), "inline.xml").text() == "Hello H2O"
    assert extract((REPORTS / "net.xml").read_bytes(), "net.xml").text() == "The ferry leaves at nine"


@pytest.mark.parametrize(
    ("label", "codec"),
    [("utf-16", "utf-8"), ("UTF-16LE", "ascii"), ("utf-8", "utf-16"), ("windows-31j", "cp932"), ("x-sjis", "cp932")],
)
def test_xml_is_read_by_the_encoding_of_its_bytes(label: str, codec: str) -> None:
    """Programs write what they would have saved it as; libxml2 does not know all of the web's names."""
    word = "①" if codec == "cp932" else "ferry" if codec == "ascii" else "Паром"
    raw = f'<?xml version="1.0" encoding="{label}"?>\r\n<r><a>{word}</a></r>'.encode(codec)

    assert extract(raw, "a.xml").text() == word
    assert steps.read_xml({"a": "a"})(Document("a.xml", raw=raw))["a"] == word


def test_a_bad_byte_of_xml_is_replaced_in_text_and_refused_in_fields() -> None:
    raw = "<r><a>Паром отходит \xff</a></r>".encode().replace("\xff".encode(), b"\xff")

    doc = extract(raw, "a.xml")
    assert (doc.text(), doc["replaced_characters"]) == ("Паром отходит \ufffd", 1)
    with pytest.raises(BadDocument, match="it is not XML"):
        steps.read_xml({"a": "a"})(Document("a.xml", raw=raw))


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ("<tr><td>a<td><td>c", "a\t\tc"),
        ("<tr><td></td><td>b</td></tr><tr><td>c</td><td>d</td></tr>", "\tb\nc\td"),
        ("<tr><td>a</td></tr><tr><td> </td><td>\n</td><td>c</td></tr>", "a\n\t\tc"),
        ("<tr><th>a</th><!-- x --><td>&nbsp;</td><td>c</td></tr>", "a\t\xa0\tc"),
        ("<tr><td><p>a</p></td><td><div></div></td><td><p>c</p></td></tr>", "a\t\tc"),
        ("<tr><td>a</td><td></td></tr><tr><td>b</td></tr>", "a\nb"),
        ("<tr><td><p>a</p></td><td><p>b</p></td></tr><tr><td><p>c</p></td></tr>", "a\tb\nc"),
        ("<caption>x</caption> <tr> <td> a </td> <td> b </td> </tr> ", "x\na\tb"),
    ],
)
def test_empty_cells_keep_their_columns(table: str, wanted: str) -> None:
    assert extract(f"<table>{table}</table>").text() == wanted
    assert extract(f"<p>p</p><table>{table}</table><p>q").text() == f"p\n\n{wanted}\n\nq"


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        ("<ol><li>one<li><p>two</p><ol type=a><li>x<li>y</ol></ol>", "1. one\n\n2. two\n\na. x\nb. y"),
        ("<ol start=3 reversed><li>a<li value=7>b<li>c</ol>", "3. a\n7. b\n6. c"),
        ("<ol reversed><li>a<li>b</ol>", "2. a\n1. b"),
        ("<ol start=26 type=a><li>z<li>aa<li type=I>x</ol>", "z. z\naa. aa\nXXVIII. x"),
        ("<ol start=-1><li>a<li>b<li>c</ol>", "-1. a\n0. b\n1. c"),
        ("<ol type=i start=x><li> <b>a</b><li><img>", "i. a\nii."),
        ("<ol><li><ol type=I><li>x</ol></ol>", "1. I. x"),
        ("<ol style='margin: 0; list-style: none'><li>a</ol><ul><li>b</ul><li>c", "a\n\nb\n\nc"),
        ("<ol><li><table><tr><td>a<td>b</table><li><pre> x</pre></ol>", "1. a\tb\n\n2.  x"),
        ("<ol><li><h2>Times</h2>daily</ol>", "1. Times\n\ndaily"),
    ],
)
def test_numbers_of_lists(page: str, wanted: str) -> None:
    """As a browser shows them; bullets are left out."""
    assert extract(page).text() == wanted


def test_drawings_and_formulas_are_text() -> None:
    """What is seen of them, not what describes them."""
    drawing = "<svg><title>t</title><desc>d</desc><defs><text>x</text></defs><text>Gate</text><text>B</text></svg>"
    formula = "<math><semantics><mi>x</mi><mo>=</mo><mn>2</mn><annotation>x=2</annotation></semantics></math>"
    assert extract(f"<p>{drawing}</p><p>So {formula}.").text() == "Gate\nB\n\nSo x=2."


def test_an_element_with_too_many_attributes_is_refused() -> None:
    """Its parser takes a time that grows with the square of them; a long value, such as of a picture, is one."""
    names = [f"a{n}" for n in range(20_001)]
    for page in (
        " ".join(names),
        " ".join(f"{name}='x y'" for name in names),
        " \n".join(f'{name}=""' for name in names),
    ):
        with pytest.raises(BadDocument, match="an element has more than 10000 attributes"):
            extract(f"<p {page}>words")
    assert extract(f"<img src='data:{'x ' * 100_000}' alt=\"{'= ' * 50_000}\"><p>words").text() == "words"


def test_pages_of_nothing_but_pictures_are_named() -> None:
    """As documents of other formats are."""
    assert extract("<body><img src='a.png'>")["unread"] == ["pictures"]
    assert extract("<body><img src='a.png'>words").get("unread") is None
    mail = b"From: a\nTo: b\nSubject: c\nMIME-Version: 1.0\nContent-Type: text/html\n\n<img src='cid:1'>"
    assert extract(mail, "a.eml")["unread"] == ["pictures"]


def test_chapters_that_are_missing_are_named() -> None:
    """A book whose reading order names what it has not."""
    book = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(corpus.epub())) as old, zipfile.ZipFile(book, "w") as new:
        for name in old.namelist():
            if name != "OPS/a.xhtml":
                new.writestr(name, old.read(name).replace(b"</p>", b"\xff</p>"))
    doc = extract(book.getvalue(), "a.epub")
    assert (doc["unread"], doc["replaced_characters"]) == (["chapters"], 1)


PAGE = """<html><body><p>Before.</p><h1>Henry <i>V</i></h1><p>O for a Muse.</p><h2>Act&nbsp;I</h2><h3>
Scene 1<br>London</h3><p>Enter.</p><h2></h2><p># no heading</p><div><h2>Act II</h2>Exeunt.</div></body></html>"""


def sections(doc: Document) -> list[tuple[str, list[str] | None]]:
    parts = steps.split_text(by="headings")(doc)
    assert isinstance(parts, list)
    return [(part.text(), part.get("headings")) for part in parts]


def test_headings_of_a_page_begin_its_sections() -> None:
    """The text shows no marks; a field has the headings."""
    doc = extract(PAGE)

    assert "# no heading" in doc.text()
    assert doc.text().startswith("Before.\n\nHenry V\n\nO for a Muse.\n\nAct\xa0I\n\nScene 1\nLondon\n\nEnter.")
    assert sections(doc) == [
        ("Before.", None),
        ("Henry V\n\nO for a Muse.", ["Henry V"]),
        ("Act\xa0I\n\nScene 1\nLondon\n\nEnter.\n\n# no heading", ["Henry V", "Act\xa0I", "Scene 1"]),
        ("Act II\n\nExeunt.", ["Henry V", "Act II"]),
    ]
    assert sections(doc.copy()) == sections(doc)


def test_headings_of_a_book_begin_its_sections() -> None:
    book = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(corpus.epub())) as old, zipfile.ZipFile(book, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b"<p>Second chapter</p>", b"<h1>Second</h1><p>chapter</p>"))
    assert sections(extract(book.getvalue(), "a.epub"))[-1] == ("Second\n\nchapter", ["Second"])


def test_a_text_that_was_changed_is_cut_where_its_headings_still_are() -> None:
    doc = extract("<h1>One</h1><p>a</p><h1>Two</h1><p>b</p><h1>Three</h1><p>c</p>")
    doc.raw = doc.text().replace("Two", "Second").encode()
    assert [headings for _, headings in sections(doc)] == [["One"], ["Three"]]
    doc.raw = b"# Other\n\ntext"
    assert sections(doc) == [("# Other\n\ntext", ["Other"])]
