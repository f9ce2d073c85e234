"""Manual pages and other troff: text without its requests, by the macros of man, mdoc and ms.

The text of a page is kept, its formatting is not. A condition that is not about the kind of output counts as false, and
macros that a page defines itself are left out.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from ferryman.steps.formats import Content, one_line
from ferryman.steps.formats.charsets import decode

_FONTS: Final = frozenset({"B", "I", "SM", "SB", "R", "CW", "UL"})
"""Macros whose words are text, with blanks between them."""
_ALTERNATING: Final = frozenset({"BR", "RB", "BI", "IB", "IR", "RI"})
"""Requests that alternate fonts without blanks between words."""
_HEADINGS: Final = frozenset({"SH", "SS", "Sh", "Ss"})
_BREAKS: Final = frozenset(
    {"PP", "P", "LP", "IP", "TP", "TQ", "HP", "RS", "RE", "sp", "bp", "Pp", "Bl", "El", "It", "Bd", "Ed", "EX", "EE"}
    | {"nf", "fi", "TS", "TE", "NH", "TL", "AU", "AI", "AB", "AE", "QP", "XP", "SY", "YS", "OP", "UR", "UE", "Lp", "D1"}
    | {"Dl"}
)
"""Requests that end a paragraph."""
_IN_NAME: Final = frozenset({"NAME", "NAMN", "NOM", "NOMBRE", "NOME", "NAAM", "BEZEICHNUNG", "名前"})
"""Headings of the section with the page's name and summary."""
_NEXT_LINE_IS_TITLE: Final = frozenset({"TL"})

_REQUEST: Final = re.compile(r"[.'][ \t]*+(\S*+)[ \t]*+(.*)")
_WORD: Final = re.compile(r'"((?:[^"]++|"")*+)"?|(\S++)')
_COMMENT: Final = re.compile(r'(?<!\\)(?:\\\\)*\\["#].*')
_ESCAPE: Final = re.compile(
    r"\\(?:"
    r"\[u(?P<code>[0-9A-F]{4,6})\]|N'(?P<number>\d{1,7})'"
    r"|\*(?:\[(?P<string>[^\]]{0,100}+)\]|\((?P<string2>..)|(?P<string1>[^\[(]))"
    r"|\[(?P<name>[^\]]{0,100}+)\]|\((?P<name2>..)"
    r"|[fFmMgYkVn](?:\[[^\]]{0,100}+\]|\(..|[+-]?.)"
    r"|s(?:\[[^\]]{0,100}+\]|'[^']{0,100}+'|\([+-]?\d\d|[+-]?(?:[1-3]\d|\d))"
    r"|[hvwxlLDbBoXZRASCH]'(?P<quoted>[^']{0,1000}+)'"
    r"|(?P<sign>.)|$)"
)
_ESCAPED: Final = {
    "e": "\\",
    "-": "-",
    "~": " ",
    " ": " ",
    "0": " ",
    "'": "´",
    "`": "`",
    "t": "\t",
    "\\": "\\",
    ".": ".",
}
_SPECIAL_CHARACTERS: Final = {
    "aq": "'", "dq": '"', "lq": "“", "rq": "”", "oq": "‘", "cq": "’", "em": "—", "en": "–", "hy": "-", "mi": "−",
    "bu": "•", "co": "©", "rg": "®", "tm": "™", "ha": "^", "ti": "~", "rs": "\\", "ga": "`", "aa": "´", "at": "@",
    "sh": "#", "Do": "$", "lB": "[", "rB": "]", "lC": "{", "rC": "}", "la": "⟨", "ra": "⟩", "or": "|", "ba": "|",
    "mu": "×", "di": "÷", "+-": "±", "<=": "≤", ">=": "≥", "!=": "≠", "->": "→", "<-": "←", "de": "°", "sc": "§",
    "ss": "ß", "ae": "æ", "AE": "Æ", "o/": "ø", "O/": "Ø", "Fo": "«", "Fc": "»", "Eu": "€", "Po": "£", "Bq": "„",
    "ul": "_", "sl": "/", "pl": "+", "eq": "=", "**": "*", "fm": "′", "sq": "□", "L\"": "“", "R\"": "”",
}  # fmt: skip
_ACCENTS: Final = {"'": "\u0301", "`": "\u0300", "^": "\u0302", ":": "\u0308", "~": "\u0303", ",": "\u0327"}

_CONDITION: Final = re.compile(r"[ \t]*(!?)[ \t]*(?:([notev])\b|(\S+))[ \t]*(.*)")
_QUOTES: Final = {
    "Pq": "()", "Dq": "“”", "Sq": "‘’", "Aq": "⟨⟩", "Bq": "[]", "Brq": "{}", "Op": "[]", "Ql": "‘’", "Qq": '""',
    "Po": "(", "Pc": ")", "Oo": "[", "Oc": "]", "Do": "“", "Dc": "”", "So": "‘", "Sc": "’", "Bo": "[", "Bc": "]",
}  # fmt: skip
_PLAIN_MDOC: Final = frozenset(
    {"Ar", "Cm", "Pa", "Em", "Sy", "Li", "Va", "Vt", "Ev", "Dv", "Er", "Fa", "Fn", "Ft", "Ic", "Ad", "Tn", "An", "Mt"}
    | {"Lk", "Cd", "In", "St", "Sx", "Bx", "Ox", "Fx", "Nx", "At", "Ux", "Ms", "No", "Bsx", "Rv", "Ex", "Lb", "Fd"}
    | {"Fo", "Fc", "Dx"}
)
"""Macros of mdoc whose words are text."""
_PUNCTUATION: Final = frozenset(".,;:()[]?!")
_DEEPEST_QUOTES: Final = 100


def troff(raw: bytes, declared: str = "") -> Content:
    """Read a page; its title is the line that summarises it, else its name and section."""
    decoded = decode(raw, declared)
    page = _Page()
    for each in _logical_lines(decoded.text):
        page.read_line(each)
    page.end_paragraph()
    fields = decoded.fields
    if title := one_line(page.title()):
        fields["title"] = title
    return Content("\n\n".join(page.paragraphs), fields)


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines, with those joined that a backslash at the end continues."""
    pending: list[str] = []
    for each in text.splitlines():
        if each.endswith("\\") and not each.endswith("\\\\"):
            pending.append(each[:-1])
            continue
        yield "".join([*pending, each]) if pending else each
        pending = []
    if pending:
        yield "".join(pending)


class _Page:
    """Text of a page, collected line by line."""

    def __init__(self) -> None:
        self.paragraphs: list[str] = []
        self._lines: list[str] = []
        self._verbatim = False
        self._strings: dict[str, str] = {}
        self._until = ""
        """Request that ends the omitted part."""
        self._depth = 0
        """Number of open braces of a condition that is false."""
        self._else: list[bool] = []
        self._table = False
        """Whether the next lines describe the format of a table."""
        self._name = self._header = self._marked_title = ""
        self._in_name = False
        self._summary = ""

    def title(self) -> str:
        return self._marked_title or self._summary or self._header

    def read_line(self, each: str) -> None:
        """Process the next line."""
        if self._depth:
            self._depth += each.count("\\{") - each.count("\\}")
            return
        if self._until:
            if each.startswith(self._until):
                self._until = ""
            return
        each = _COMMENT.sub("", each)
        match = _REQUEST.match(each) if each[:1] in (".", "'") else None
        if match is None:
            self._text(each.removesuffix("\\}"))
        elif not match[1].startswith("\\"):
            self._request(match[1], match[2])

    def _text(self, each: str) -> None:
        if self._table:
            self._table = not each.rstrip().endswith(".")
            return
        text = self._unescape(each)
        if self._marked_title == "\0":
            self._marked_title = text
        if not text.strip() and not self._verbatim:
            self.end_paragraph()
        elif text.strip() not in ("T{", "T}"):
            self._lines.append(text)

    def _request(self, name: str, rest: str) -> None:
        if name in ("de", "de1", "am", "ig"):
            words = _words(rest)
            end = words[:1] if name == "ig" else words[1:2]
            self._until = f".{end[0]}" if end else ".."
        elif name in ("ds", "ds1"):
            key, _, value = rest.partition(" ")
            self._strings[key] = self._unescape(value.lstrip(" ").removeprefix('"'))[:_LONGEST_STRING]
        elif name in ("if", "ie", "el", "while"):
            self._condition(name, rest)
        elif name in ("TH", "Dt"):
            self._page_header(_words(rest))
        elif name in ("EQ", "PS"):
            self._until = ".EN" if name == "EQ" else ".PE"
        elif name == "so":
            self._lines.append(f"See {self._unescape(rest).strip()}")
        elif name == "br":
            self._lines.append("\n")
        else:
            self._macro(name, rest)

    def _page_header(self, words: list[str]) -> None:
        words = [self._unescape(word) for word in words]
        self._header = f"{words[0]}({words[1]})" if len(words) > 1 else "".join(words)

    def _macro(self, name: str, rest: str) -> None:
        if name in _BREAKS or name in _HEADINGS:
            self.end_paragraph()
            stays_verbatim = self._verbatim and name not in ("fi", "EE", "TE", "Ed")
            self._verbatim = stays_verbatim or name in ("nf", "EX", "TS", "Bd")
            self._table = name == "TS"
        if name in _NEXT_LINE_IS_TITLE:
            self._marked_title = "\0"
        words = [self._unescape(word) for word in _words(rest)]
        if name in _HEADINGS:
            self._in_name = " ".join(words).upper() in _IN_NAME
            if words:
                self.paragraphs.append(" ".join(words))
        elif name in _ALTERNATING:
            self._lines.append("".join(words))
        elif name in _FONTS:
            self._lines.append(" ".join(words))
        elif name in ("Nd", "Nm", "Fl", "Xr", "Ns", "Ap") or name in _QUOTES or name in _PLAIN_MDOC:
            self._lines.append(self._mdoc([name, *words]))
        elif name in ("It", "D1", "Dl"):
            self._lines.append(self._mdoc(words))
        elif name in ("IP", "OP", "SY"):
            self._lines.append(" ".join(words[:1] if name == "IP" else words))

    def _mdoc(self, words: list[str]) -> str:
        """Return the text of a line of mdoc, which has macros among its words."""
        pieces: list[str] = []
        closing, glue = "", False
        at = 0
        end_of_words = next((n for n in range(len(words), 0, -1) if words[n - 1] not in _PUNCTUATION), 0)
        while at < len(words):
            word, at = words[at], at + 1
            text: str | None = word
            if word == "Nm":
                if at < len(words) and words[at] not in _PUNCTUATION and not _is_mdoc(words[at]):
                    text, at = words[at], at + 1
                    self._name = self._name or text
                else:
                    text = self._name
            elif word == "Nd":
                text = "–"
            elif word == "Fl":
                text = "-"
                if at < len(words) and words[at] not in _PUNCTUATION and not _is_mdoc(words[at]):
                    text, at = f"-{words[at]}", at + 1
            elif word == "Xr" and at < len(words):
                text, at = words[at], at + 1
                if at < len(words) and words[at] not in _PUNCTUATION:
                    text, at = f"{text}({words[at]})", at + 1
            elif word in ("Ns", "Ap"):
                glue, text = True, "'" if word == "Ap" else None
            elif word in _QUOTES:
                signs = _QUOTES[word]
                if len(signs) == 2:
                    closing = (signs[1] + closing)[:_DEEPEST_QUOTES]
                pieces.append(("" if not pieces or glue else " ") + signs[0])
                glue, text = signs[0] not in ")]’”", None
            elif word in _PLAIN_MDOC:
                text = None
            if closing and at > end_of_words:
                pieces.append(closing)
                closing, glue = "", True  # what ends the sentence stands behind
            if text is not None and (text or pieces):
                pieces.append(text if glue or not pieces or text in _PUNCTUATION - {"(", "["} else f" {text}")
                glue = text in ("(", "[") or word == "Ap"
        return "".join([*pieces, closing])

    def end_paragraph(self) -> None:
        if self._verbatim:
            text = "\n".join(self._lines).strip("\n")
        else:
            text = "\n".join(" ".join(part.split()) for part in " ".join(self._lines).split("\n")).strip()
        self._lines = []
        if text:
            self.paragraphs.append(text)
            if self._in_name and not self._summary:
                self._summary = text

    def _condition(self, name: str, rest: str) -> None:
        if name == "el":
            is_true, rest_of_line = (self._else.pop() if self._else else False), rest
        else:
            match = _CONDITION.match(rest)
            is_true = bool(match and match[2] and (match[2] in "no") != bool(match[1]))
            rest_of_line = match[4] if match else ""
            if name == "ie":
                self._else.append(not is_true)
        rest_of_line = rest_of_line.lstrip()
        if not is_true:
            self._depth = max(
                0, rest_of_line.count("\\{") + rest[: len(rest) - len(rest_of_line)].count("\\{") - rest.count("\\}")
            )
        elif rest_of_line := rest_of_line.removeprefix("\\{").removesuffix("\\}").strip():
            self.read_line(rest_of_line)

    def _unescape(self, text: str) -> str:
        """Replace the escapes in a text by their characters."""
        if "\\" not in text:
            return text

        def sign(match: re.Match[str]) -> str:
            if code := match["code"] or match["number"]:
                number = int(code, 16 if match["code"] else 10)
                return chr(number) if number < 0x110000 else ""
            key = match["string"] or match["string2"] or match["string1"]
            if key is not None:
                return self._strings.get(key, _SPECIAL_CHARACTERS.get(key, ""))
            if name := match["name"] or match["name2"]:
                return _special_character(name)
            return _ESCAPED.get(match["sign"] or "", "")

        return _ESCAPE.sub(sign, text)


_LONGEST_STRING: Final = 200
"""Characters kept of a defined string: strings that contain strings could grow without bound."""


def _special_character(name: str) -> str:
    """Return a special character by its name; accented ones are composed."""
    if name in _SPECIAL_CHARACTERS:
        return _SPECIAL_CHARACTERS[name]
    if len(name) == 2 and name[0] in _ACCENTS:
        return unicodedata.normalize("NFC", name[1] + _ACCENTS[name[0]])
    return ""


def _words(text: str) -> list[str]:
    """Split a request's arguments; quoted ones may contain blanks."""
    return [
        quoted.replace('""', '"') if plain == "" else plain
        for quoted, plain in _WORD.findall(text.replace("\\ ", "\\~"))
    ]


def _is_mdoc(word: str) -> bool:
    return word in _PLAIN_MDOC or word in _QUOTES or word in ("Nm", "Nd", "Fl", "Xr", "Ns", "Ap")
