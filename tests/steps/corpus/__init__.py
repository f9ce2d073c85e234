"""Real and broken files of every format that ``extract_text`` reads: those in ``files/``, and made ones."""

from __future__ import annotations

import functools
import io
import struct
import zipfile
from collections.abc import Mapping
from email.message import EmailMessage
from pathlib import Path

FILES = Path(__file__).parent / "files"

MUSE = "O for a Muse of fire, that would ascend the brightest heaven of invention, a kingdom for a stage."


def shipped() -> dict[str, bytes]:
    """Name -> bytes of the files in ``files/``."""
    return {path.name: path.read_bytes() for path in sorted(FILES.iterdir()) if path.suffix != ".md"}


def made() -> dict[str, bytes]:
    """Name -> bytes: a sound one of each format, then bad ones."""
    return good() | bad()


@functools.cache
def good() -> dict[str, bytes]:
    """Name -> bytes: a sound one of each format."""
    return {
        "muse.pdf": pdf([MUSE, "Second page."]),
        "muse.docx": docx(),
        "muse.pptx": pptx(),
        "muse.xlsx": xlsx('<row r="1"><c r="A1" t="inlineStr"><is><t>Muse</t></is></c><c r="B1"><v>42</v></c></row>'),
        "muse.odt": odt(),
        "muse.epub": epub(),
        "muse.html": html(),
        "muse.md": f"# Henry V\n\n{MUSE}\n\n```\n# no heading\n```\n".encode(),
        "muse.rtf": rtf(),
        "muse.eml": mail().as_bytes(),
        "muse.xml": f"<play><title>Henry V</title><line>{MUSE}</line></play>".encode(),
        "muse.txt": MUSE.encode(),
        "latin-1.txt": "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.".encode("latin-1"),
        "utf-16.txt": MUSE.encode("utf-16"),
        "cp1251.txt": ("Съешь ещё этих мягких французских булок, да выпей чаю. " * 4).encode("cp1251"),
        "shift-jis.txt": ("いろはにほへと ちりぬるを わかよたれそ つねならむ。" * 4).encode("shift-jis"),
        "no-ending": f"<!DOCTYPE html><html><body><p>{MUSE}</p></body></html>".encode(),
        "wrong-ending.txt": pdf([MUSE]),
        "controls.txt": b"a\x01b\x0bc\x7f",
        "scan.pdf": pdf([""]),
    }


@functools.cache
def bad() -> dict[str, bytes]:
    """Name -> bytes of what cannot be read."""
    cut = ("muse.pdf", "muse.docx", "muse.pptx", "muse.xlsx", "muse.odt", "muse.epub")
    return {
        **{f"cut-{name}": good()[name][: len(good()[name]) // 2] for name in cut},
        **{f"empty{Path(name).suffix}": b"" for name in good() if name.startswith("muse.")},
        "nothing.pdf": b"%PDF-1.7\n" + bytes(range(256)) * 8,
        "encrypted.epub": epub(locked=True),
        "bomb.docx": zipped(
            {"[Content_Types].xml": types_of("word/document.xml"), "word/document.xml": b" " * 80_000_000}
        ),
        "laughs.docx": docx(LAUGHS.encode()),
        "deep.docx": docx(b"<a>" * 5000),
        "wide.xlsx": xlsx(
            '<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="XFD1048576"><v>2</v></c></row>'
        ),
        "missing.docx": zipped({"[Content_Types].xml": types_of("word/document.xml"), "word/other.xml": b"<a/>"}),
        "laughs.xml": LAUGHS.encode(),
        "deep.html": b"<div>" * 100_000 + b"deep",
        "deep.rtf": b"{\\rtf1 " + b"{" * 50_000 + b"deep" + b"}" * 50_000 + b"}",
        "binary.dat": bytes(range(256)) * 16,
        "picture.pdf": b"\x89PNG\r\n\x1a\n" + bytes(64),
        "circle.pdf": circle(),
        "headers.eml": b"From: =?utf-8?q?=ff?= <@@>\nDate: yesterday\nSubject: =?x?y?z?=\nTo: ,,,;\n\nwords \xff",
    }


LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a0 "ha">'
    + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    + "]><l>&a9;</l>"
)
"""A billion laughs."""


# -- formats ---------------------------------------------------------------------------------------


def pdf(pages: list[str]) -> bytes:
    """A PDF with a text of its own on each page."""
    bodies = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Count %d /Kids [%s] >>"
        % (len(pages), b" ".join(b"%d 0 R" % (5 + 2 * n) for n in range(len(pages)))),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Title (Henry V) /Author (W. Shakespeare) /CreationDate (D:20240501120000+02'00') >>",
    ]
    for n, text in enumerate(pages):
        drawn = f"BT /F1 9 Tf 40 700 Td ({text}) Tj ET".encode() if text else b""
        bodies.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % (6 + 2 * n)
        )
        bodies.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawn), drawn))
    return _pdf(bodies)


def circle() -> bytes:
    """A PDF whose pages contain themselves."""
    return _pdf([b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Count 9 /Kids [2 0 R 2 0 R] >>"])


def _pdf(bodies: list[bytes]) -> bytes:
    return pdf_of(dict(enumerate(bodies, 1)), b" /Info 4 0 R" if len(bodies) > 2 else b"")


def pdf_of(bodies: Mapping[int, bytes], trailer: bytes = b"") -> bytes:
    """A PDF of objects by their numbers; the first one is its catalog."""
    out = io.BytesIO(b"%PDF-1.7\n")
    out.seek(0, io.SEEK_END)
    size = max(bodies) + 1
    places = [b"%010d 65535 f \n" % 0] * size
    for number, body in bodies.items():
        places[number] = b"%010d 00000 n \n" % out.tell()
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    start = out.tell()
    out.write(b"xref\n0 %d\n%s" % (size, b"".join(places)))
    out.write(b"trailer << /Size %d /Root 1 0 R%s >>\nstartxref\n%d\n%%%%EOF\n" % (size, trailer, start))
    return out.getvalue()


def zipped(members: Mapping[str, bytes | str]) -> bytes:
    """A zip archive, the same on every day."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, (2024, 5, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


_SECTOR, _MINI, _CUTOFF = 512, 64, 4096
_END, _FREE, _FAT = 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFD


def compound(streams: Mapping[str, bytes]) -> bytes:
    """A compound file (OLE), as Office before 2007 and Outlook write it: path -> content, folders are storages."""
    folders = {path[:at] for path in streams for at, c in enumerate(path) if c == "/"}
    paths = ["", *sorted(folders | set(streams))]
    sectors: list[bytes] = []
    chains: list[int] = []

    def put(data: bytes) -> int:
        if not data:
            return _END
        start = len(sectors)
        for at in range(0, len(data), _SECTOR):
            sectors.append(data[at : at + _SECTOR].ljust(_SECTOR, b"\0"))
            chains.append(len(sectors))
        chains[-1] = _END
        return start

    small, small_chains, starts = b"", [], dict[str, int]()
    for path, data in streams.items():
        if len(data) >= _CUTOFF:
            starts[path] = put(data)
            continue
        starts[path] = len(small) // _MINI if data else _END
        small += data.ljust(-(-len(data) // _MINI) * _MINI, b"\0")
        small_chains += list(range(len(small_chains) + 1, len(small) // _MINI)) + ([_END] if data else [])
    starts[""] = put(small)
    mini_fat = put(b"".join(struct.pack("<I", each) for each in small_chains).ljust(_SECTOR, b"\xff"))

    entries = b""
    for number, path in enumerate(paths):
        folder, _, name = path.rpartition("/")
        inside = [n for n, other in enumerate(paths) if n and other.rpartition("/")[0] == path]
        beside = [n for n, other in enumerate(paths) if n > number and number and other.rpartition("/")[0] == folder]
        encoded = ("Root Entry" if not number else name).encode("utf-16-le") + b"\0\0"
        kind = 2 if path in streams else 1 if number else 5
        size = len(streams.get(path, b"")) if number else len(small)
        entries += encoded.ljust(64, b"\0") + struct.pack("<HBB", len(encoded), kind, 1)
        entries += struct.pack(
            "<III", _FREE, beside[0] if beside else _FREE, inside[0] if inside and kind != 2 else _FREE
        )
        entries += bytes(36) + struct.pack("<IQ", starts.get(path, _END if kind == 5 else 0), size)
    directory = put(entries.ljust(-(-len(entries) // _SECTOR) * _SECTOR, b"\0"))

    fats = next(n for n in range(1, 110) if (len(chains) + n) * 4 <= n * _SECTOR)
    first_fat = len(sectors)
    chains += [_FAT] * fats
    fat = b"".join(struct.pack("<I", each) for each in chains).ljust(fats * _SECTOR, b"\xff")
    header = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16) + struct.pack("<HHHHH6x", 0x3E, 3, 0xFFFE, 9, 6)
    header += struct.pack(
        "<IIIIIIIII", 0, fats, directory, 0, _CUTOFF, mini_fat, -(-len(small_chains) // 128) or 1, _END, 0
    )
    header += struct.pack("<109I", *range(first_fat, first_fat + fats), *[_FREE] * (109 - fats))
    return header + b"".join(sectors) + fat


_WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml."


def types_of(main: str, **others: str) -> str:
    """[Content_Types].xml of a DOCX."""
    parts = {main: "document.main+xml"} | {f"word/{name}.xml": f"{kind}+xml" for name, kind in others.items()}
    overrides = "".join(f'<Override PartName="/{part}" ContentType="{_WORD}{kind}"/>' for part, kind in parts.items())
    return f'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">{overrides}</Types>'


CORE = """<cp:coreProperties xmlns:cp="http://schemas.openxmlformats.org/package/2006/metadata/core-properties"
 xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:dcterms="http://purl.org/dc/terms/"><dc:title>Henry V</dc:title>
 <dc:creator>W. Shakespeare</dc:creator><dcterms:created>2024-05-01T10:00:00Z</dcterms:created></cp:coreProperties>"""


def docx(document: bytes | None = None) -> bytes:
    """Paragraphs, a table, a text box, deleted words, a footnote; or another main part."""
    namespace = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    body = (
        f"<w:document {namespace}><w:body><w:p><w:r><w:t>{MUSE[:22]}</w:t></w:r><w:r><w:t>{MUSE[22:]}</w:t></w:r></w:p>"
        "<w:p><w:del><w:r><w:delText>deleted</w:delText></w:r></w:del><w:r><w:t>kept</w:t><w:tab/><w:t>on</w:t></w:r>"
        "<w:r><w:txbxContent><w:p><w:r><w:t>in a box</w:t></w:r></w:p></w:txbxContent></w:r></w:p>"
        "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>one</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>two</w:t></w:r></w:p></w:tc>"
        "</w:tr><w:tr><w:tc><w:p><w:r><w:t>three</w:t></w:r></w:p></w:tc></w:tr></w:tbl></w:body></w:document>"
    )
    note = f"<w:footnotes {namespace}><w:footnote><w:p><w:r><w:t>a note</w:t></w:r></w:p></w:footnote></w:footnotes>"
    return zipped(
        {
            "[Content_Types].xml": types_of("word/document.xml", footnotes="footnotes"),
            "word/document.xml": body if document is None else document,
            "word/footnotes.xml": note,
            "docProps/core.xml": CORE,
        }
    )


def pptx() -> bytes:
    """Two slides, shown in another order than that of their files; the first one shown has notes."""
    relations = "http://schemas.openxmlformats.org/package/2006/relationships"
    drawing = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'

    def slide(text: str) -> str:
        return f"<p:sld xmlns:p='p' {drawing}><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:sld>"

    return zipped(
        {
            "[Content_Types].xml": "<Types/>",
            "ppt/presentation.xml": "<p:presentation xmlns:p='p' xmlns:r='r'><p:sldIdLst><p:sldId r:id='r2'/>"
            "<p:sldId r:id='r1'/></p:sldIdLst></p:presentation>",
            "ppt/_rels/presentation.xml.rels": f"<Relationships xmlns='{relations}'><Relationship Id='r1' "
            "Target='slides/slide1.xml'/><Relationship Id='r2' Target='/ppt/slides/slide2.xml'/></Relationships>",
            "ppt/slides/slide1.xml": slide("Second slide"),
            "ppt/slides/slide2.xml": slide(MUSE),
            "ppt/slides/_rels/slide2.xml.rels": f"<Relationships xmlns='{relations}'><Relationship Id='n' "
            "Target='../notesSlides/notesSlide1.xml'/></Relationships>",
            "ppt/notesSlides/notesSlide1.xml": slide("Speak up"),
            "docProps/core.xml": CORE,
        }
    )


def xlsx(rows: str) -> bytes:
    """A workbook of one sheet."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    package = "http://schemas.openxmlformats.org/package/2006"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    return zipped(
        {
            "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="xml" '
            f'ContentType="application/xml"/><Override PartName="/xl/workbook.xml" '
            f'ContentType="{kind}.sheet.main+xml"/>'
            "</Types>",
            "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
            f'Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
            "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets><sheet name="Plays" sheetId="1" '
            'r:id="r1"/></sheets></workbook>',
            "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
            f'Type="{office}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
            "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{rows}</sheetData></worksheet>',
            "docProps/core.xml": CORE,
        }
    )


def odt() -> bytes:
    """A heading, a paragraph with spaces and a note, a table."""
    text = 'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"'
    table = 'xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0"'
    return zipped(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "content.xml": f"<body {text} {table}><text:h>Act I</text:h><text:p>{MUSE[:5]}<text:span>{MUSE[5:]}"
            "</text:span>"
            '<text:s text:c="2"/>!<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>a note'
            "</text:p></text:note-body></text:note></text:p><table:table><table:table-row><table:table-cell><text:p>one"
            "</text:p></table:table-cell><table:table-cell><text:p>two</text:p></table:table-cell></table:table-row>"
            "</table:table></body>",
            "meta.xml": '<meta xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Henry V</dc:title>'
            "<dc:date>2024-05-01T10:00:00</dc:date></meta>",
        }
    )


def epub(locked: bool = False) -> bytes:
    """Two chapters, in another order than in the archive."""
    members: dict[str, bytes | str] = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": "<container><rootfiles><rootfile full-path='OPS/book.opf'/></rootfiles></container>",
        "OPS/book.opf": "<package xmlns:dc='http://purl.org/dc/elements/1.1/'><metadata><dc:title>Henry V</dc:title>"
        "<dc:creator>W. Shakespeare</dc:creator><dc:creator>J. Fletcher</dc:creator><dc:date>1600</dc:date></metadata>"
        "<manifest><item id='a' href='a.xhtml'/><item id='b' href='b%20c.xhtml'/></manifest>"
        "<spine><itemref idref='b'/><itemref idref='a'/></spine></package>",
        "OPS/a.xhtml": "<html><body><p>Second chapter</p></body></html>",
        "OPS/b c.xhtml": f"<?xml version='1.0' encoding='utf-8'?><html><body><p>{MUSE}</p></body></html>",
    }
    if locked:
        members["META-INF/encryption.xml"] = (
            '<e><EncryptionMethod Algorithm="http://www.w3.org/2001/04/xmlenc#aes128-cbc"/></e>'
        )
    return zipped(members)


def html() -> bytes:
    """What is seen, and what is not."""
    return (
        "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>Henry V</title><meta name='author' "
        "content='W. Shakespeare'><meta property='article:published_time' content='2024-05-01T10:00:00Z'><style>p {}"
        f"</style></head><body><h1>Act&nbsp;I</h1><p>{MUSE[:8]}<b>{MUSE[8:12]}</b>\n  {MUSE[13:]}</p>"
        "<script>no()</script>"
        "<ul><li>one<li>two</ul><table><tr><td>a<td>b</table><pre>x\n  y</pre>"
    ).encode()


def rtf() -> bytes:
    """With its information group, and a character of its code page."""
    return (
        "{\\rtf1\\ansi\\ansicpg1252{\\info{\\title Henry V}{\\author W. Shakespeare}"
        "{\\creatim\\yr2024\\mo5\\dy1\\hr10\\min0}}" + MUSE + "\\par caf\\'e9}"
    ).encode()


def mail(*, inner: EmailMessage | None = None) -> EmailMessage:
    """A mail with a DOCX, a broken PDF, and a picture."""
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = "Henry V", "W. Shakespeare <will@example.org>", "a@example.org"
    message["Date"], message["Message-ID"] = "Wed, 01 May 2024 10:00:00 +0000", "<1@example.org>"
    message.set_content(MUSE)
    message.add_alternative(f"<p>{MUSE}</p>", subtype="html")
    message.add_attachment(docx(), maintype="application", subtype="octet-stream", filename="play.docx")
    message.add_attachment(b"%PDF-1.7 broken", maintype="application", subtype="pdf", filename="broken.pdf")
    message.add_attachment(b"\x89PNG\r\n\x1a\n" + bytes(32), maintype="image", subtype="png", filename="stage.png")
    if inner is not None:
        message.add_attachment(inner)
    for part in message.walk():
        if part.is_multipart() and part.get_boundary() is None and part.get_content_maintype() == "multipart":
            level = "inner" if inner is None else "outer"
            part.set_boundary(f"=====henry-{level}-{part.get_content_subtype()}=====")  # the same on every day
    return message
