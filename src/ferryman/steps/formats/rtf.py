"""RTF (version 1.9.1), read without a library: those that exist take quadratic time, or know no fonts' encodings.

Text is what a word processor shows: with list numbers, text boxes, notes and comments, without what is deleted or
hidden. Each byte is decoded by the encoding of its font.
"""

from __future__ import annotations

import re
from typing import Any, Final

from ferryman.steps.formats import Content, Unread, iso_date, one_line
from ferryman.steps.formats.charsets import LAST_RESORT, python_name

_TOKEN: Final = re.compile(
    rb"([^\\{}\r\n]++)|\\'([0-9a-fA-F]{2})|([{}])|\\([a-zA-Z]{1,32})(-?\d{1,10})? ?|\\([^a-zA-Z])|[\r\n]++|\\",
    re.DOTALL,
)
_MORE: Final = re.compile(rb"[\s\0]*+[^{}\s\0][^}]*+\}")
"""End of a document that an unmatched brace seemed to have ended before."""
_TEXT, _HEX, _BRACE, _WORD, _NUMBER, _SIGN = range(1, 7)
"""Groups of a token, of which its last one says what it is."""
_LINK: Final = re.compile(r"HYPERLINK\s++\"((?:https?|ftp|mailto):[^\"\s]{1,2000})")

_CHARSETS: Final = {
    0: "cp1252", 2: "cp1252", 77: "mac_roman", 78: "cp932", 79: "cp949", 80: "gb18030", 81: "big5", 83: "mac_greek",
    85: "mac_turkish", 86: "mac_latin2", 88: "mac_latin2", 89: "mac_cyrillic", 128: "cp932", 129: "cp949",
    130: "johab", 134: "gb18030", 136: "cp950", 161: "cp1253", 162: "cp1254", 163: "cp1258", 177: "cp1255",
    178: "cp1256", 186: "cp1257", 204: "cp1251", 222: "cp874", 238: "cp1250", 254: "cp437", 255: "cp850",
}  # fmt: skip
"""Numbers of fonts' character sets -> encodings; any other, and 1, is the document's code page."""

_PAGES: Final = {"ansi": "cp1252", "mac": "mac_roman", "pc": "cp437", "pca": "cp850"}

_CHARACTERS: Final = {
    "par": "\n", "line": "\n", "row": "\n", "nestrow": "\n", "sect": "\n\n", "page": "\n\n", "column": "\n",
    "softline": "\n", "tab": "\t", "cell": "\t", "nestcell": "\t", "emdash": "—", "endash": "–", "emspace": "\u2003",
    "enspace": "\u2002", "qmspace": "\u2005", "bullet": "•", "lquote": "‘", "rquote": "’", "ldblquote": "“",
    "rdblquote": "”", "zwj": "\u200d", "zwnj": "\u200c", "ltrmark": "\u200e", "rtlmark": "\u200f",
}  # fmt: skip
_SIGNS: Final = {
    b"~": "\xa0", b"-": "\xad", b"_": "\u2011", b"{": "{", b"}": "}", b"\\": "\\", b"\n": "\n", b"\r": "\n",
    b"\t": "\t",
}  # fmt: skip

_NOTES: Final = frozenset(
    {"footnote", "annotation", "header", "headerl", "headerr", "headerf", "footer", "footerl", "footerr", "footerf"}
)
"""Groups whose text stands after that of the document."""
_READ_IF_STARRED: Final = _NOTES | {"fldinst", "shpinst", "shptxt", "ud"}
"""Groups that older programs may skip, and this one does not."""
_SKIPPED: Final = frozenset(
    {"aftncn", "aftnsep", "aftnsepc", "atnauthor", "atndate", "atnicn", "atnid", "atnparent", "atnref", "atntime"}
    | {"atrfend", "atrfstart", "background", "bkmkend", "bkmkstart", "blipuid", "bxe", "buptim", "category"}
    | {"colorschememapping", "colortbl", "comment", "company", "datafield", "datastore", "docvar", "doccomm"}
    | {"falt", "fchars", "ffdeftext", "ffentrymcr", "ffexitmcr", "ffformat", "ffhelptext", "ffl", "ffname"}
    | {"ffstattext", "file", "filetbl", "fontemb", "fontfile", "formfield", "ftncn", "ftnsep", "ftnsepc", "generator"}
    | {"gridtbl", "hlinkbase", "info", "keywords", "latentstyles", "lchars", "levelnumbers", "leveltext", "list"}
    | {"listlevel", "listname", "listoverride", "listoverridetable", "listpicture", "liststylename", "listtable"}
    | {"mailmerge", "manager", "mmathPr", "nesttableprops", "nonesttables", "objalias", "objclass", "objdata"}
    | {"objname", "objsect", "objtime", "oldcprops", "oldpprops", "oldsprops", "oldtprops", "oleclsid", "operator"}
    | {"password", "passwordhash", "pgptbl", "pict", "pn", "private", "propname", "protusertbl", "pxe", "revtbl"}
    | {"rsidtbl", "rxe", "shprslt", "sn", "sp", "staticval", "stylesheet", "subject", "sv", "svb", "tc", "template"}
    | {"themedata", "txe", "userprops", "wgrffmtfilter", "xe", "xmlnstbl", "xform"}
)
_DATES: Final = {"creatim": "created", "revtim": "modified"}
_HIDING: Final = {"v": 1, "deleted": 2}


class _Reader:
    """Reads the tokens of a document, one after the other."""

    def __init__(self) -> None:
        self.body: list[str] = []
        self.notes: list[list[str]] = []
        self.info: dict[str, list[str]] = {"title": [], "author": []}
        self.dates: dict[str, dict[str, int]] = {}
        self.replaced = 0
        self.unread = Unread()
        self.has_pictures = False
        self._groups: list[tuple[Any, ...]] = []
        """States of the groups around the current one, which come back at its end."""
        self._fonts: dict[int, str] = {}
        self._default_font = 0
        self._page = LAST_RESORT
        self._pending = bytearray()
        """Bytes that are not decoded yet: two of them may be one character."""
        self._skip = 0
        """Characters to skip that stand for a Unicode character in programs which do not know it."""
        self._starred = False

        self._sink: list[str] | None = self.body
        """Takes text; None: it is skipped."""
        self._behind: list[str] | None = None
        """In a group of two forms, takes the text of the second."""
        self._encoding = LAST_RESORT
        self._fallbacks = 1
        self._hidden = 0
        self._name = ""
        self._link = ""
        self._font: int | None = None
        """In the table of fonts, the font that is being described."""
        self._date: dict[str, int] | None = None

    def read(self, raw: bytes) -> None:
        start = max(raw.find(b"{"), 0)
        while start < len(raw):
            for token in _TOKEN.finditer(raw, start):
                kind = token.lastindex
                if kind == _TEXT:
                    self._text(token[_TEXT])
                elif kind == _HEX:
                    self._text(bytes.fromhex(token[_HEX].decode()))
                elif kind == _BRACE:
                    if token[_BRACE] == b"}" and len(self._groups) == 1 and _MORE.match(raw, token.end()):
                        continue  # one that no group has: the document goes on
                    self._brace(token[_BRACE])
                    if not self._groups:
                        start = len(raw)  # what follows is not part of the document
                        break
                elif kind == _SIGN:
                    self._sign(token[_SIGN])
                elif kind is not None:
                    number = int(token[_NUMBER]) if token[_NUMBER] else None
                    if token[_WORD] == b"bin":  # so many bytes are not tokens
                        start = token.end() + max(number or 0, 0)
                        break
                    self._word(token[_WORD].decode(), number)
            else:
                break
        self._flush()

    def join(self, pieces: list[str]) -> str:
        """Join text, in which characters beyond 16 bits are two surrogates; count those that are alone."""
        text = "".join(pieces)
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        self.replaced += joined.count("\ufffd") - text.count("\ufffd")
        return joined

    def _text(self, text: bytes) -> None:
        if self._skip:
            skipped = min(self._skip, len(text))
            self._skip -= skipped
            text = text[skipped:]
        if self._sink is not None and not self._hidden:
            self._pending += text

    def _flush(self) -> None:
        """Decode the bytes that wait."""
        if not self._pending:
            return
        try:
            text = self._pending.decode(self._encoding)
        except UnicodeError:
            text = self._pending.decode(self._encoding, "replace")
            self.replaced += max(text.count("\ufffd"), 1)
        self._pending.clear()
        assert self._sink is not None
        self._sink.append(text)

    def _put(self, text: str) -> None:
        self._flush()
        if self._sink is not None and not self._hidden:
            self._sink.append(text)

    def _brace(self, brace: bytes) -> None:
        self._flush()
        self._skip, self._starred = 0, False
        if brace == b"{":
            self._groups.append((
                self._name, self._sink, self._behind, self._encoding, self._fallbacks, self._hidden, self._link,
                self._font, self._date,
            ))  # fmt: skip
            self._name, self._link = "", ""
            return
        if not self._groups:
            return
        ended, sink = self._name, self._sink
        if ended == "field" and self._link:
            self._put(f" ({self._link})")
        (
            self._name, self._sink, self._behind, self._encoding, self._fallbacks, self._hidden, self._link,
            self._font, self._date,
        ) = self._groups.pop()  # fmt: skip
        if ended == "fonttbl":
            self._encoding = self._font_encoding(self._default_font)
        elif ended == "fldinst" and sink is not None and (link := _LINK.search("".join(sink))):
            self._link = link[1]

    def _sign(self, sign: bytes) -> None:
        if sign == b"*":
            self._starred = True
        elif sign in _SIGNS:
            self._skip = 0
            self._put(_SIGNS[sign])

    def _word(self, word: str, number: int | None) -> None:
        self._skip = 0
        if self._starred:
            self._starred = False
            if word == "objdata":
                self.unread.add("embedded files")
            if word not in _READ_IF_STARRED:
                self._flush()
                self._sink = None
                return
        if word in _CHARACTERS:
            self._put(_CHARACTERS[word])
        elif word == "u" and number is not None:
            self._put(chr(number if 0xFFFF < number < 0x110000 else number & 0xFFFF))
            self._skip = self._fallbacks
        elif word == "uc":
            self._fallbacks = max(number or 0, 0)
        elif word in _HIDING:
            self._flush()
            self._hidden = self._hidden & ~_HIDING[word] if number == 0 else self._hidden | _HIDING[word]
        elif not self._set_font(word, number):
            self._open(word, number)

    def _set_font(self, word: str, number: int | None) -> bool:
        """Follow a word about fonts and encodings; return whether it is one."""
        if word == "f":
            if self._font is not None:
                self._font = number or 0
            else:
                self._decode_by(self._font_encoding(number or 0))
        elif word == "plain":
            self._flush()
            self._hidden = 0
            self._encoding = self._font_encoding(self._default_font)
        elif word == "fcharset" and self._font is not None:
            self._fonts[self._font] = _CHARSETS.get(number or 0, "")
        elif word == "cpg" and self._font is not None:
            self._fonts[self._font] = python_name(f"cp{number}") or self._fonts.get(self._font, "")
        elif word == "deff":
            self._default_font = number or 0
        elif word == "ansicpg" or word in _PAGES:
            self._page = _PAGES.get(word) or python_name(f"cp{number}") or LAST_RESORT
            self._decode_by(self._page)
        else:
            return False
        return True

    def _decode_by(self, encoding: str) -> None:
        if encoding != self._encoding:
            self._flush()
            self._encoding = encoding

    def _font_encoding(self, font: int) -> str:
        return self._fonts.get(font) or self._page

    def _open(self, word: str, number: int | None) -> None:
        """Follow a word that says what its group is for; others change nothing."""
        if self._date is not None and word in ("yr", "mo", "dy", "hr", "min"):
            self._date[word] = number or 0
        elif word == "fonttbl":
            self._flush()
            self._sink, self._name, self._font = None, word, 0
        elif word in self.info and self._sink is None and self._groups and self._groups[-1][0] == "info":
            self._sink, self._encoding = self.info[word], self._page
        elif word in _DATES:
            self._date = self.dates.setdefault(_DATES[word], {})
        elif word in _SKIPPED or word in self.info:
            self.has_pictures = self.has_pictures or word == "pict"
            if word == "objdata":
                self.unread.add("embedded files")
            self._flush()
            self._sink, self._name = None, word
        elif word == "upr":
            self._flush()
            self._sink, self._behind = None, self._sink
        elif word == "ud":
            self._sink = self._behind
        elif self._sink is not None and (word in _NOTES or word == "fldinst"):
            self._flush()
            self._sink, self._name = [], word
            if word in _NOTES:
                self.notes.append(self._sink)
        elif word == "field":
            self._name = word


def rtf(raw: bytes) -> Content:
    """Read RTF; title, author and dates come from its information group."""
    reader = _Reader()
    reader.read(raw)
    parts = [reader.join(pieces).strip() for pieces in (reader.body, *reader.notes)]
    fields: dict[str, Any] = {name: one_line(reader.join(pieces)) for name, pieces in reader.info.items()}
    fields |= {name: _moment(numbers) for name, numbers in reader.dates.items()}
    fields["replaced_characters"] = reader.replaced
    text = "\n\n".join(dict.fromkeys(part for part in parts if part))  # headers stand there once for each section
    if not text and reader.has_pictures:
        reader.unread.add("pictures")
    return Content(text, {name: value for name, value in fields.items() if value} | reader.unread.fields)


def _moment(parts: dict[str, int]) -> str:
    date = f"{parts.get('yr', 0):04}-{parts.get('mo', 0):02}-{parts.get('dy', 0):02}"
    return iso_date(f"{date}T{parts.get('hr', 0):02}:{parts.get('min', 0):02}:00")
