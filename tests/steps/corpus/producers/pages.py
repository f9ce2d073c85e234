"""PDF, HTML, RTF, EPUB and text as programs write them."""

from __future__ import annotations

import zlib
from typing import Final

from tests.steps import corpus
from tests.steps.corpus.producers import Sample

_TO_UNICODE: Final = b"""/CIDInit /ProcSet findresource begin
12 dict begin
begincmap
/CMapName /Adobe-Identity-UCS def
1 begincodespacerange
<0000><FFFF>
endcodespacerange
%d beginbfchar
%s
endbfchar
endcmap
end
end
"""


def itext() -> bytes:
    """Text by numbers of glyphs, with a table that leads back to Unicode, kerned, in a compressed stream; a ligature;
    a note, and what was filled into a form."""
    letters = sorted(set("The officer waits at gate B in Łódź.") | {"ﬁ"})
    number = {letter: at for at, letter in enumerate(letters, 3)}
    unicode = {**{letter: letter for letter in letters}, "ﬁ": "fi"}

    def glyphs(text: str) -> bytes:
        return b"".join(b"%04X" % number[each] for each in text)

    text = b"[<%s> -20 <%s>] TJ 0 -20 Td <%s> Tj" % (
        glyphs("The of"),
        glyphs("ﬁcer waits"),
        glyphs("at gate B in Łódź."),
    )
    drawn = zlib.compress(b"q BT /F1 12 Tf 40 700 Td " + text + b" ET Q")
    pairs = b"\n".join(
        b"<%04X> <%s>" % (n, unicode[c].encode("utf-16-be").hex().upper().encode()) for c, n in number.items()
    )
    table = zlib.compress(_TO_UNICODE % (len(number), pairs))
    stream = b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream"
    return corpus.pdf_of(
        {
            1: b"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [9 0 R] /DR << >> /DA (/Helv 0 Tf) >> >>",
            2: b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>",
            3: b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Annots [9 0 R 10 0 R] "
            b"/Resources << /Font << /F1 5 0 R >> >> >>",
            4: stream % (len(drawn), drawn),
            5: b"<< /Type /Font /Subtype /Type0 /BaseFont /ABCDEF+Arial /Encoding /Identity-H /DescendantFonts [6 0 R] "
            b"/ToUnicode 8 0 R >>",
            6: b"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /ABCDEF+Arial /CIDSystemInfo << /Registry (Adobe) "
            b"/Ordering (Identity) /Supplement 0 >> /FontDescriptor 7 0 R /DW 500 >>",
            7: b"<< /Type /FontDescriptor /FontName /ABCDEF+Arial /Flags 4 /FontBBox [0 0 1000 1000] /ItalicAngle 0 "
            b"/Ascent 900 /Descent -200 /CapHeight 700 /StemV 80 >>",
            8: stream % (len(table), table),
            9: b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (ship) /V (Albatros) /Rect [40 600 200 620] /F 4 >>",
            10: b"<< /Type /Annot /Subtype /Text /Contents (Ask the harbour master) /Rect [300 600 320 620] >>",
        },
        b"",
    )


def word_html() -> bytes:
    """A page that Word saved: conditional comments, paragraphs of its own classes, cp1252 by its name."""
    return (
        '<html xmlns:o="urn:schemas-microsoft-com:office:office" xmlns:w="urn:schemas-microsoft-com:office:word">\r\n<head>'
        '<meta http-equiv=Content-Type content="text/html; charset=windows-1252"><title>Harbour rules</title>'
        "<!--[if gte mso 9]><xml><w:WordDocument><w:View>Normal</w:View></w:WordDocument></xml><![endif]--><style><!-- p "
        "{margin:0} --></style></head>\r\n<body lang=EN-GB><h1>Harbour\r\nrules<o:p></o:p></h1><p class=MsoListParagraph>"
        "<![if !supportLists]><span>1.<span>&nbsp;&nbsp; </span></span><![endif]>Buy a ticket \u2013 \u201cnow\u201d<o:p>"
        "</o:p></p><table><tr><td><p>Port</p></td><td><p>Time</p></td></tr></table></body></html>"
    ).encode("cp1252")


def wordpress() -> bytes:
    """A page of a blog: navigation, scripts with words, structured data, entities, a list, code."""
    return (
        b"<!DOCTYPE html><html lang='en-US'><head><meta charset='UTF-8'><title>Harbour &#8211; Blog</title>"
        b'<script type=\'application/ld+json\'>{"@type": "Article", "headline": "unseen"}</script></head><body>'
        b"<nav><ul><li><a href='/'>Home</a></li><li><a href='/about'>About</a></li></ul></nav><main><article><h1>Harbour"
        b"</h1><p>The ferry&nbsp;leaves at&#8230; nine.<br>Daily.</p><pre><code>if (a &lt; b) {\n  sail();\n}</code></pre>"
        b"<ul><li>one</li><li>two</li></ul><noscript>unseen</noscript></article></main><script>var unseen = 1;</script>"
        b"</body></html>"
    )


def word_rtf() -> bytes:
    """Unicode with its replacement, a list with its number as text, a table, a hidden group, a picture, a footnote."""
    return (
        r"{\rtf1\adeflang1025\ansi\ansicpg1252\uc1\adeff0\deff0{\fonttbl{\f0\fswiss\fcharset0 Arial;}}{\*\generator "
        r"Microsoft Word 16;}{\info{\title Harbour}{\author Ann}}{\stylesheet{\s1 heading 1;}}"
        r"\pard\plain \s1 Harbour rules\par \pard Na \u322\'3fodzi \u55357?\u56994? {\*\bkmkstart a}caf\'e9{\*\bkmkend a}\par "
        r"{\listtext\pard\plain 1.\tab}Buy a ticket\par \trowd\cellx1000\cellx2000 Port\cell Time\cell\row "
        r"{\v hidden}{\*\shppict{\pict\pngblip 89504e47}}Seen{\super\chftn{\footnote \pard A note}}\par}"
    ).encode("ascii")


def textedit_rtf() -> bytes:
    """A document of TextEdit: the encoding in its header, a line end for a paragraph, Unicode without replacement."""
    return (
        b"{\\rtf1\\ansi\\ansicpg1252\\cocoartf2761\n\\cocoatextscaling0{\\fonttbl\\f0\\fswiss\\fcharset0 Helvetica;}\n"
        b"{\\colortbl;\\red255\\green255\\blue255;}\n\\pard\\f0\\fs24 \\cf0 The ferry leaves\\\n"
        b"at \\uc0\\u8220 nine\\u8221  \\'97 daily}"
    )


def calibre() -> bytes:
    """Chapters in the order of the spine, with their navigation, a cover that is a picture."""
    page = (
        '<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title>x</title></head>'
    )
    return corpus.zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="content.opf" media-type="application/oebps-package+xml"/></rootfiles></container>',
            "content.opf": '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">'
            "<metadata><dc:title>Harbour</dc:title><dc:creator>Ann</dc:creator><dc:language>en</dc:language></metadata>"
            '<manifest><item id="t" href="titlepage.xhtml" media-type="application/xhtml+xml"/><item id="b" href='
            '"text/part%201.html" media-type="application/xhtml+xml"/><item id="ncx" href="toc.ncx" media-type='
            '"application/x-dtbncx+xml"/></manifest><spine toc="ncx"><itemref idref="t"/><itemref idref="b"/></spine>'
            "</package>",
            "titlepage.xhtml": f'{page}<body><svg xmlns="http://www.w3.org/2000/svg"><image href="cover.jpg"/></svg></body>'
            "</html>",
            "text/part 1.html": f'{page}<body><h2 class="calibre1">One</h2><p class="calibre2">The <span>fer</span>ry.</p>'
            "</body></html>",
            "toc.ncx": '<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap><navPoint><navLabel><text>One</text>'
            "</navLabel></navPoint></navMap></ncx>",
        }
    )


def samples() -> list[Sample]:
    return [
        Sample(
            "itext.pdf",
            "iText",
            itext(),
            "The officer waits at gate B in Łódź. Albatros Ask the harbour master",
        ),
        Sample("word.html", "Word", word_html(), "Harbour rules 1. Buy a ticket – “now” Port Time", "Harbour rules"),
        Sample(
            "wordpress.html",
            "WordPress",
            wordpress(),
            "Home About Harbour The ferry leaves at… nine. Daily. if (a < b) { sail(); } one two",
            "Harbour – Blog",
        ),
        Sample(
            "word.rtf",
            "Word",
            word_rtf(),
            "Harbour rules Na łodzi 🚢 café 1. Buy a ticket Port Time Seen A note",
            "Harbour Ann",
        ),
        Sample("textedit.rtf", "TextEdit", textedit_rtf(), "The ferry leaves at “nine” — daily"),
        Sample("calibre.epub", "calibre", calibre(), "One The ferry.", "Harbour Ann en"),
        Sample(
            "notepad.txt",
            "Notepad",
            "\ufeffDer Fährmann\r\nkommt um neun.\r\n".encode("utf-16-le"),
            "Der Fährmann kommt um neun.",
        ),
        Sample(
            "old.txt",
            "an editor of 1998",
            ("Паром отходит в девять часов утра. " * 3).encode("cp1251"),
            "Паром отходит в девять часов утра. " * 3,
        ),
    ]
