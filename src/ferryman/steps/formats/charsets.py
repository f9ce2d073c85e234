"""Character encodings: the one that was declared, else the one that the bytes show.

Declared names are those of the web (WHATWG, by webencodings), where ``iso-8859-1`` is Windows' cp1252 and ``gb2312``
is gb18030; other names are Python's. Bytes that the encoding does not have become U+FFFD, and their number is known.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from functools import lru_cache
from math import log
from typing import Any, Final, NamedTuple

from ferryman import limits

_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks and encodings; the order matters, because UTF-32's mark begins with that of UTF-16."""

LAST_RESORT: Final = "cp1252"
"""Most frequent encoding of old text; it decodes nearly every byte."""

_IN_USE: Final = (
    "cp1252",
    "cp1250",
    "cp1251",
    "koi8_r",
    "cp1253",
    "cp1254",
    "cp1255",
    "cp1256",
    "cp932",
    "euc_jp",
    "gb18030",
    "big5",
    "cp949",
)
"""Encodings in use for text that is not Unicode. Among all encodings a short German text looks Turkish."""

_LABEL: Final = re.compile(r"[\w.:()+-]{1,40}", re.ASCII)
_ASCII_LABELS: Final = frozenset(
    {"ascii", "us-ascii", "ansi_x3.4-1968", "ansi_x3.4-1986", "iso646-us", "iso_646.irv:1991", "646"}
)
"""Names of ASCII. Programs write them where they do not know: a byte above 127 refutes them."""

_WIDER: Final = {"gbk": "gb18030", "iso2022_jp": "iso2022_jp_ext"}
"""Encodings -> others that have all of their characters, and more that are sent under the same name."""

_NOT_TEXT: Final = frozenset({"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"})
"""Names of Python's that are not encodings of files; some take quadratic time."""

_ESCAPES: Final = ((b"\x1b$)C", "iso2022_kr"), (b"\x1b$B", "iso2022_jp_ext"), (b"\x1b$@", "iso2022_jp_ext"))
"""Escape sequences of encodings whose bytes are all ASCII."""

_WIDE: Final = (("utf-32-le", 4), ("utf-32-be", 4), ("utf-16-le", 2), ("utf-16-be", 2))
_INSPECTED_BYTES: Final = 4096
_MOST_NULS: Final = 0.3
"""Share of NULs up to which text of one byte a character may be damaged; UTF-16 of Latin text has half."""
_NUL_RUN: Final = re.compile(rb"\0{16,}+")
"""NULs that a crash left in a file, or a rotation before its beginning."""
_MOST_NUL_RUNS: Final = 3
_CONTROLS: Final = bytes({*range(1, 0x20), 0x7F} - set(b"\b\t\n\f\r\x1a\x1b"))
_BLANKS: Final = "\t\n\r \u3000"
_EAST_ASIAN: Final = -1
_ONE_SCRIPT: Final = 0.8
_ODD_CATEGORIES: Final = frozenset({"Cc", "Cn", "Co", "Cs"})

_NEARLY: Final = 4
"""Characters of UTF-8 that must be right for each that is wrong, for undeclared bytes to be UTF-8."""

_NOT_ASCII: Final = re.compile(rb"[\x80-\xff]")
_BEFORE_BYTES: Final = limits.KIB
"""Bytes before the first one above 127 that help to guess the encoding."""


class Decoded(NamedTuple):
    """Text that was decoded.

    Attributes:
        charset: Python's name of the encoding, such as "utf-8", "cp1252", "iso-8859-2".
        replaced: number of U+FFFD in the text that stand for bytes which the encoding does not have.
    """

    text: str
    charset: str
    replaced: int = 0

    @property
    def fields(self) -> dict[str, Any]:
        """Return the document's fields: ``charset``, and ``replaced_characters`` if there are any."""
        fields: dict[str, Any] = {"charset": self.charset}
        if self.replaced:
            fields["replaced_characters"] = self.replaced
        return fields


def decode(raw: bytes, *declared: str | None) -> Decoded:
    """Decode text, and return it with the name of its encoding and the number of characters that were replaced.

    The encoding is that of the byte order mark, else the declared one. Only where none is declared it is found by the
    bytes: UTF-16 and UTF-32 without a mark, UTF-8 (also if a few bytes are wrong), else the likeliest. It never
    raises.

    Args:
        declared: names of the encoding as they stand outside and inside, the most authoritative first (HTTP's or a
            part's header, then ``<meta>``); "", None and unknown names are passed over. UTF-16 and ASCII count only
            if the bytes can be that.
    """
    for bom, encoding in _BOMS:
        if raw.startswith(bom):
            return _decode_as(raw, encoding)
    for label in declared:
        encoding = python_name(label or "")
        if not encoding:
            continue
        if encoding.startswith(("utf-16", "utf-32")):
            if wide := wide_encoding(raw):
                return _decode_as(raw, wide)
            if _decodes(raw, "utf-8"):
                continue
        elif (label or "").strip().lower() in _ASCII_LABELS and not raw.isascii():
            continue
        return _decode_as(raw, encoding)
    return _decode_undeclared(raw)


@lru_cache(maxsize=256)
def python_name(label: str) -> str:
    """Return Python's name of an encoding by a name of the web or of Python; "" for an unknown one."""
    import webencodings

    label = label.strip(" \t\r\n\f\"',;").lower()
    if not _LABEL.fullmatch(label):
        return ""
    known = webencodings.lookup(label)
    name = label if known is None or known.name in ("replacement", "x-user-defined") else known.codec_info.name
    try:
        b"    ".decode(name, "replace")  # the codec exists, and gives text
        name = codecs.lookup(name).name
    except (LookupError, ValueError):
        return ""
    return "" if name.replace("_", "-") in _NOT_TEXT else _WIDER.get(name, name)


def wide_encoding(raw: bytes) -> str:
    """Return which of UTF-16 and UTF-32 text without a mark is in; "" if in neither, by the first bytes."""
    sample = raw[:_INSPECTED_BYTES]
    if b"\0" not in sample or (is_narrow_text(sample) and _nearly_utf8(sample.replace(b"\0", b""))):
        return ""
    best, most = "", -1
    for encoding, width in _WIDE:
        whole = sample[: len(sample) // width * width]
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(whole)  # its last character may be cut
        except UnicodeDecodeError:
            continue
        if not _is_prose(text):
            continue
        blanks = sum(map(text.count, _BLANKS)) + sum(c.isascii() for c in text)
        if blanks > most:
            best, most = encoding, blanks
    return best


def _is_prose(text: str) -> bool:
    """Return whether text is of one script, besides Latin letters and punctuation. Binary data mixes all of them."""
    scripts: Counter[int] = Counter()
    for character in set(text):
        if unicodedata.category(character) in _ODD_CATEGORIES and character not in "\t\n\r\f":
            return False
        code = ord(character)
        if 0x2E80 <= code < 0xD800 or 0xFF00 <= code < 0xFFF0 or code >= 0x20000:
            scripts[_EAST_ASIAN] += text.count(character)
        elif code >= 0x100 and not 0x2000 <= code < 0x2E00:
            scripts[code >> 8] += text.count(character)
    return bool(text) and max(scripts.values(), default=0) >= _ONE_SCRIPT * scripts.total()


def is_narrow_text(sample: bytes) -> bool:
    """Return whether bytes are text of one byte a character, in which some NULs may be, as in a log after a crash."""
    sample, runs = _NUL_RUN.subn(b"", sample)
    text = sample.replace(b"\0", b"")
    few = runs <= _MOST_NUL_RUNS and len(sample) - len(text) <= _MOST_NULS * len(sample)
    return few and bool(text) and len(text.translate(None, _CONTROLS)) == len(text)


def _decode_undeclared(raw: bytes) -> Decoded:
    if wide := wide_encoding(raw):
        return _decode_as(raw, wide)
    for escape, encoding in _ESCAPES if b"\x1b" in raw and raw.isascii() else ():
        if escape in raw and _decodes(raw, encoding):
            return _decode_as(raw, encoding)
    try:
        return Decoded(raw.decode("utf-8"), "utf-8")
    except UnicodeDecodeError:
        return _decode_as(raw, "utf-8" if _nearly_utf8(raw) else _guess(raw))


def _decode_as(raw: bytes, encoding: str) -> Decoded:
    """Decode with replacement, and count what was replaced."""
    charset = encoding.removesuffix("-sig").removesuffix("_ext").replace("iso8859-", "iso-8859-")
    try:
        return Decoded(raw.decode(encoding), charset)
    except UnicodeError:
        text = raw.decode(encoding, "replace")
    written = raw.count(b"\xef\xbf\xbd") if charset == "utf-8" else 0
    return Decoded(text, charset, max(text.count("\ufffd") - written, 1))


def _decodes(raw: bytes, encoding: str) -> bool:
    try:
        raw.decode(encoding)
    except UnicodeError:
        return False
    return True


def _nearly_utf8(raw: bytes) -> bool:
    """Return whether bytes are UTF-8 but for a few: nothing else has so many of its sequences by chance."""
    text = raw.decode("utf-8", "replace")
    written = raw.count(b"\xef\xbf\xbd")
    wrong = text.count("\ufffd") - written
    return len(text) - len(text.encode("ascii", "ignore")) - wrong >= _NEARLY * wrong


_ASCII_RUN: Final = re.compile(rb"[\x00-\x7f]{40,}+")
_LETTERS_BYTES: Final = 2 * limits.KIB
"""Bytes of a text, without such runs, whose letters tell its encoding."""
_WORD_OF_HIGH_BYTES: Final = re.compile(rb"(?<![A-Za-z])[\x80-\xff][\x40-\xff]*+")
_LETTERS: Final = {
    "cp1251": "оеаинтсрвлкмдпуяыьгзбчйхжшюцщэфъёіїєґўј",
    "koi8_r": "оеаинтсрвлкмдпуяыьгзбчйхжшюцщэфъё",
    "cp1253": "αοιετσνηυκπρωμλςάίγέόδήθύχφβώξζψϊϋΐΰ",
    "cp1255": "יוהלאתרבשמנםדעקחפכסטגןצזךףץ",
    "cp1256": "اليمنورتبةعدسفهكقأحجشطصىخإذزثضئءغآظؤپچژگ",
    "cp874": "านรอกเงม่ย้ลวดทส็ัิีตะปบคหแจพชุูข์ใไโผถซณธศฟภษฐญึืฉำฎฝฮๆฏฆฑฒฬฌ",
}
"""Encodings of one byte a letter, of scripts other than Latin -> their letters, the most frequent ones first."""
_JAPANESE: Final = (
    "のにはをたがでてとしれさいるもなからこっんりすまくきよあうつだどせそけわみえおちめやろばひねじずごほへふむ"
    "ーンスルトアイリラクドレジフロシカタムプテコ日本人大国会東京年月生学中出社"
)
_COMMON: Final = {
    "cp949": (
        "이다는을에의가고하지도로한기사은대를어서리자인시그나아스으정있일수라과해전여부장보제원안것요니게만주선세상"
        "성신들구오조적면우유동문와계화관국생미공무소러비마았교연영었중물위내경방간회개발람말모습입없년월명실분터음행업"
    ),
    "gb18030": (
        "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行"
        "所然家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日军者意无力它世界谢"
    ),
    "big5": (
        "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著下自之年過發後作裡用道行"
        "所然家種事成方多經麼去法學如都同現當沒動面起看定天分還進好小部其些主樣理心她本前開但因只從想實日軍者意無力它世界謝"
    ),
    "cp932": _JAPANESE,
    "euc_jp": _JAPANESE,
}
"""Encodings of two bytes a character -> characters that are frequent in their language."""
_PLAIN_SETS: Final = {"cp949": "euc_kr", "gb18030": "gb2312", "big5": "big5", "cp932": "euc_jp", "euc_jp": "euc_jp"}
"""Encodings -> others, by whose first byte frequent characters are told from rare ones."""
_FREQUENT_LEADS: Final = {
    "cp949": (0xB0, 0xC8), "gb18030": (0xB0, 0xD7), "big5": (0xA4, 0xC6), "cp932": (0xA4, 0xCF), "euc_jp": (0xA4, 0xCF),
}  # fmt: skip


_WESTERN: Final = "øèæàåêñœïùãëòìûõðþ"
_OTHER_LATIN: Final = {"cp1250": "ęłąěřčżśćůńőźűňťďľđ", "cp1254": "ışğ"}
"""Encodings of Latin letters -> letters that cp1252 has not, as it has its own of ``_WESTERN`` in their places."""
_IN_BOTH: Final = "šžŠŽ"
"""Letters that cp1252 and cp1250 have in the same places, and that are frequent in languages of cp1250."""
_NOT_TURKISH: Final = frozenset("áéíóúæàèÁÉÍÓÚÆ")
_LEAST_LETTERS: Final = 2
"""Different letters that tell that a text is not in cp1252: one may be chance, such as the ³ of a cubic metre."""


def _latin(sample: bytes) -> str:
    """Return which encoding a text of Latin letters is in, by those that are not the same in all of them."""
    western = sample.decode(LAST_RESORT, "replace")
    best, most = LAST_RESORT, 0.0
    for encoding, letters in _OTHER_LATIN.items():
        if encoding == "cp1254" and not _NOT_TURKISH.isdisjoint(western):
            continue
        gain, seen = 0.0, set[str]()
        in_other = sample.decode(encoding, "replace")
        for before, own, other, after in zip(f" {western}", western, in_other, f"{western[1:]} ", strict=False):
            if own != other:
                gain += _latin_rate(other, before, after, letters) - _latin_rate(own, before, after, _WESTERN)
                seen |= {other.lower()} & set(letters)
            elif encoding == "cp1250" and own in _IN_BOTH:
                gain += 1.5
                seen.add(own.lower())
        if gain > most and len(seen) >= _LEAST_LETTERS:
            best, most = encoding, gain
    return best


def _latin_rate(character: str, before: str, after: str, letters: str) -> float:
    """Return the logarithm of the probability of a character between two others; ``letters`` are the frequent ones."""
    rank = letters.find(character.lower())
    if letters is _WESTERN and character in "ìòù" and not after.isalpha():
        rank = 1  # words of Italian end so
    is_begun = before > "\x7f" or before.isalpha()
    is_odd = character.isupper() and before.islower()
    is_odd = is_odd or (character in "èÈ" and not is_begun and after.isalpha())  # no word of French begins so
    if rank >= 0 and not is_odd:
        return -1.4 - 0.12 * rank
    return -6.0 if is_begun else -4.0 if character.isalpha() else -2.5


def _candidates(sample: bytes) -> tuple[str, ...]:
    """Return which encodings a text may be in: one, if the letters that are frequent in its script tell, also of a few
    words. Of Latin script is a text with few bytes above 127 in its words."""
    high = sum(map(len, _HIGH.findall(sample)))
    words = ((len(word), sum(map(len, _HIGH.findall(word)))) for word in _WORD_OF_HIGH_BYTES.findall(sample))
    alone = sum(own for size, own in words if own >= _LEAST_WORD and 2 * own >= size)
    if alone < _SHARE_ALONE * high:
        return (_latin(sample),)
    likely = {encoding: _likelihood(sample, encoding) for encoding in (*_LETTERS, *_COMMON)}
    best = max(likely, key=lambda encoding: likely[encoding])
    return (best,) if likely[best] > _LIKELY else _IN_USE if likely[best] > _POSSIBLE else (_latin(sample),)


def _likelihood(sample: bytes, encoding: str) -> float:
    """Return how likely text is in an encoding: the logarithm of its probability, for each byte above 127."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(sample)  # its last character may be cut
    except UnicodeDecodeError:
        return -100.0
    total, size, before = 0.0, 0, " "
    for character in text:
        if character > "\x7f":
            size += len(character.encode(encoding))
            total += _rate(character, before, encoding)
        if (
            encoding in _LETTERS
            and (character < "\x80") != (before < "\x80")
            and _is_letter(character)
            and _is_letter(before)
        ):
            total += _UNLIKELY  # no word has letters of two scripts
        before = character
    return total / size - (_OLD if encoding == "koi8_r" else 0.0) if size else -100.0


def _rate(character: str, before: str, encoding: str) -> float:
    """Return the logarithm of the probability of a character after another one."""
    if encoding in _LETTERS:
        rank = _LETTERS[encoding].find(character.lower())
        if rank < 0:
            return _PUNCTUATION if unicodedata.category(character)[0] in "PZ" else _UNLIKELY
        fall = _FALL / len(_LETTERS[encoding])
        is_within = character.isupper() and before > "\x7f"
        return log(fall) - fall * rank - is_within * (3.0 if before.islower() else 0.5 if before.isupper() else 0.0)
    if character in _COMMON[encoding]:
        return -log(2.0 * len(_COMMON[encoding]))
    if unicodedata.category(character)[0] in "PZ":
        return _WIDE_PUNCTUATION
    try:
        lead = character.encode(_PLAIN_SETS[encoding])[0]
    except UnicodeEncodeError:
        return 1.5 * _UNLIKELY
    first, last = _FREQUENT_LEADS[encoding]
    return -log(4.0 * 94 * (last - first)) if first <= lead <= last else 1.5 * _UNLIKELY


_HIGH: Final = re.compile(rb"[\x80-\xff]+")
_LEAST_WORD, _SHARE_ALONE = 2, 0.7
"""Bytes above 127 of a word that has hardly any others, and the share of such words by which a text is not Latin."""
_PUNCTUATION, _WIDE_PUNCTUATION, _UNLIKELY = -6.0, -8.0, -9.0
"""Logarithms of the probability of a character that is not a letter, and of one that is hardly ever there."""
_LIKELY, _POSSIBLE, _OLD = -4.6, -5.5, 0.1
"""Likelihoods from which a guess is taken, or left to charset_normalizer; what KOI8 is less likely, as it is rare."""
_FALL: Final = 3.3
"""Logarithm of how much more frequent the first letter of a script is than the last one."""


def _is_letter(character: str) -> bool:
    return unicodedata.category(character)[0] in "LM"


def _guess(raw: bytes) -> str:
    """Guess the encoding: the most likely one of those in use, the first if several are equally likely."""
    first = _NOT_ASCII.search(raw)
    start = max(0, first.start() - _BEFORE_BYTES) if first else 0
    sample = raw[start : start + limits.EXTRACT_SAMPLE_BYTES].replace(b"\0", b"")
    encodings = _candidates(_ASCII_RUN.sub(b" ", sample)[:_LETTERS_BYTES])
    if len(encodings) == 1:
        return codecs.lookup(encodings[0]).name
    from charset_normalizer import from_bytes

    matches = list(from_bytes(sample, cp_isolation=list(encodings)))
    if not matches:
        return LAST_RESORT
    least = min(match.chaos for match in matches)
    alike = {name for match in matches if match.chaos <= least for name in match.could_be_from_charset}
    return codecs.lookup(next((name for name in encodings if name in alike), LAST_RESORT)).name
