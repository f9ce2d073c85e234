"""Character encodings: what was declared is honoured, what is not declared is found, what was replaced is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferryman import steps
from ferryman.document import Document
from ferryman.steps.formats.charsets import decode

REPORTS = Path(__file__).parent / "corpus" / "reports"

FERRY = "Паром отходит в девять часов утра. "
JAPANESE = "船は九時に出ます。"


def extract(name: str, raw: bytes) -> Document:
    out = steps.extract_text()(Document(name, raw=raw))
    return out[0] if isinstance(out, list) else out


DECLARED = [
    ("iso-8859-2", "iso8859-2", "Zażółć gęślą jaźń", "iso-8859-2"),
    ("ISO-8859-8-I", "iso8859-8", "המעבורת יוצאת", "iso-8859-8"),
    ("iso-8859-8", "iso8859-8", "המעבורת יוצאת", "iso-8859-8"),
    ("iso-2022-jp", "iso2022_jp", JAPANESE, "iso2022_jp"),
    ("x-sjis", "cp932", "①株式会社㈱", "cp932"),
    ("ks_c_5601-1987", "cp949", "똠방각하 여객선", "cp949"),
    ("euc-kr", "cp949", "똠방각하", "cp949"),
    ("windows-874", "cp874", "เรือออกเก้าโมง", "cp874"),
    ("cp850", "cp850", "Fähre für König", "cp850"),
    ("gb2312", "gb18030", "渡轮九点离开，镕€", "gb18030"),
    ("big5", "big5hkscs", "渡輪九點離開", "big5hkscs"),
    ("iso-8859-1", "cp1252", "it’s 9 – €5", "cp1252"),
    ("latin1", "cp1252", "“œuvre”", "cp1252"),
    ("utf-7", "utf-7", "naïve", "utf-7"),
    ("hz-gb-2312", "hz", "渡轮", "hz"),
    ("utf-16", "utf-16-le", "船は", "utf-16-le"),
    ("utf-16be", "utf-16-be", "Fähre", "utf-16-be"),
    (" 'UTF-8';", "utf-8", FERRY, "utf-8"),
]


@pytest.mark.parametrize(("label", "codec", "text", "charset"), DECLARED, ids=[row[0].strip() for row in DECLARED])
def test_a_declared_encoding_is_honoured(label: str, codec: str, text: str, charset: str) -> None:
    """By the web's names, whose encodings have more characters than Python's of the same name; else by Python's."""
    assert decode(text.encode(codec), label) == (text, charset, 0)


@pytest.mark.parametrize("bad", [b"\xff", b"\xd0", b"\x80\x80"])
def test_a_bad_byte_is_replaced_and_counted(bad: bytes) -> None:
    """The rest stays what it is, declared or not."""
    raw = (FERRY * 2).encode() + bad + b" " + FERRY.encode()

    for declared in ("utf-8", ""):
        found = decode(raw, declared)
        assert found.text.replace("\ufffd", "") == f"{FERRY * 2} {FERRY}"
        assert (found.charset, found.replaced) == ("utf-8", len(bad))
        assert found.fields == {"charset": "utf-8", "replaced_characters": len(bad)}
    assert decode(b"abc\xe9", "utf-8") == ("abc\ufffd", "utf-8", 1)
    assert decode(JAPANESE.encode("cp932") + b"\x91", "shift_jis").replaced == 1
    assert "replaced_characters" not in decode("\ufffd is a character".encode()).fields


def test_a_replacement_character_of_the_text_is_not_counted() -> None:
    raw = "\ufffd stands for what is unknown: ".encode() + FERRY.encode() + b"\xff"
    assert decode(raw).replaced == 1


def test_declared_names_that_cannot_be_meant_are_passed_over() -> None:
    """Names that nobody knows; UTF-16 of bytes that are UTF-8; ASCII of bytes above 127; Python's odd codecs."""
    for label in ("", None, "x-unknown", "utf-16", "utf-16le", "utf-32", "us-ascii", "rot13", "idna", "unicode_escape"):
        assert decode(FERRY.encode(), label) == (FERRY, "utf-8", 0)
    assert decode(b"plain", "us-ascii").text == "plain"
    assert decode("é".encode("cp850"), "none", "cp850").text == "é"
    assert decode(b"x", "\0", "é" * 9, "a" * 1_000_000).text == "x"


def test_the_first_known_declaration_counts() -> None:
    """The header's before the page's; a byte order mark before both."""
    assert decode(FERRY.encode("cp1251"), "windows-1251", "utf-8").text == FERRY
    assert decode(FERRY.encode("utf-8-sig"), "windows-1251") == (FERRY, "utf-8", 0)
    assert decode(FERRY.encode("utf-16"), "windows-1251") == (FERRY, "utf-16", 0)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", ["The ferry\r\n", f"{FERRY}\n", f"{JAPANESE}\n一二三\n", "hi", "تغادر العبارة\n"])
def test_wide_encodings_without_a_mark_are_found(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding)) == (text, encoding, 0)
    assert decode(f"{text * 2000}".encode(encoding)).charset == encoding


@pytest.mark.parametrize("text", ["a\0bcd", "line one\n\0\0\0\0line two\n", "hello world\0", f"{FERRY}\0\0{FERRY}"])
def test_a_few_nuls_do_not_make_utf_16(text: str) -> None:
    assert decode(text.encode()) == (text, "utf-8", 0)


def test_old_japanese_and_korean_mail_text_is_found() -> None:
    """Its bytes are ASCII, but its escape sequences tell."""
    assert decode(JAPANESE.encode("iso2022_jp")) == (JAPANESE, "iso2022_jp", 0)
    assert decode("여객선".encode("iso2022_kr")).text == "여객선"
    assert decode(b"\x1b[31mred\x1b[0m \x1b$ ").charset == "utf-8"


OLD = {
    "cp1251": FERRY,
    "koi8_r": FERRY,
    "cp932": JAPANESE,
    "euc_jp": JAPANESE,
    "gb18030": "渡轮九点离开港口，谢谢大家的帮助和支持。",
    "big5": "渡輪九點離開港口，謝謝大家的幫助。",
    "cp1253": "Το πλοίο φεύγει στις εννέα. ",
    "cp1252": "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. ",
}


@pytest.mark.parametrize("encoding", OLD)
def test_undeclared_old_text_is_not_taken_for_damaged_utf_8(encoding: str) -> None:
    """Its bytes are UTF-8 too seldom. It is guessed, also if the first megabyte is ASCII."""
    raw = (OLD[encoding] * 6).encode(encoding)

    assert decode(raw).text == OLD[encoding] * 6
    assert decode(b"ascii line\n" * 100_000 + raw).text.endswith(OLD[encoding] * 6)


@pytest.mark.parametrize(
    ("encoding", "texts"),
    [
        ("cp1255", "המעבורת יוצאת בתשע|שלום עולם|שלום|שלום, world"),
        ("cp949", "여객선은 아홉 시에 떠납니다|안녕하세요 세계|안녕하세요|여객선|서울 hotel|대한민국"),
        ("cp1251", "Паром отходит|Привет, мир|в 9 часов|Україна|България|ПРИВЕТ, МИР"),
        ("koi8_r", "Паром отходит|Привет, мир"),
        ("cp1253", "Το πλοίο φεύγει|Καλημέρα"),
        ("cp1256", "تغادر العبارة في التاسعة|مرحبا بالعالم|سلام"),
        ("cp874", "เรือออกเก้าโมง|สวัสดี"),
        ("cp932", "船は九時に出ます。|こんにちは世界|東京|フェリー|株式会社"),
        ("euc_jp", "船は九時に出ます。|こんにちは世界|東京タワー"),
        ("gb18030", "渡轮九点离开港口|你好世界|你好|中国|北京大学"),
        ("big5", "渡輪九點離開港口|你好世界|謝謝|中華民國"),
        (
            "cp1252",
            "Fähre für König|café|it’s nine – €5|Größe|naïve “œuvre”|à la carte|Ærø|Ñandú|“Öl”|déjà là|«été»|5 °C ± 2",
        ),
        ("cp1252", "Le père et la mère, à côté de l'hôtel où l'été naît|20 m³ à 5 €|½ l, 3² = 9, § 5"),
        ("cp1252", "¿Cuántos años? ¡Olé!|Perché così? È più bella, però lunedì.|São João, não há ações|señor|ça"),
        ("cp1252", "På øen er der æbler|blåbærsyltetøy|Það er gott veður í dag|Ångström är öl|£5 each, £10 both"),
        (
            "cp1250",
            "Zażółć gęślą jaźń|Příliš žluťoučký kůň|Łódź|Dziękuję bardzo za wiadomość.|Český rozhlas, večer každou",
        ),
        ("cp1250", "Árvíztűrő tükörfúrógép|Trajekt odhaja ob devetih, čez šest ur|Đačić i žena šeću čupavog psa"),
        ("cp1254", "Işığı söndür, güneş doğdu|Türkiye'nin başkenti Ankara'dır, İstanbul değil."),
    ],
)
def test_short_texts_are_guessed_by_their_letters(encoding: str, texts: str) -> None:
    """Of a few words, which say too little about how likely the whole is; and of many."""
    for text in texts.split("|"):
        for many in (text, f"{text} " * 300):
            assert decode(many.encode(encoding)).text == many
    assert decode(b"ascii line\n" * 100_000 + texts.split("|")[0].encode(encoding)).text.endswith(texts.split("|")[0])


@settings(deadline=None, max_examples=300)
@given(raw=st.binary(max_size=300), label=st.sampled_from([row[0] for row in DECLARED] + ["", "utf-32", "replacement"]))
def test_it_never_raises(raw: bytes, label: str) -> None:
    """Whatever the bytes; the text is one that can be encoded, or has been replaced."""
    found = decode(raw, label)
    assert found.replaced >= 0
    assert found.charset


@pytest.mark.parametrize(
    ("name", "text", "charset", "replaced"),
    [
        ("one-bad-byte.html", "Паром отходит в девять часов утра.", "utf-8", 1),
        ("one-bad-byte.txt", "Паром отходит в девять часов утра.", "utf-8", 1),
        ("meta-utf16.html", "The ferry leaves at nine", "utf-8", None),
        ("nobom.txt", "The ferry leaves at nine.\n", "utf-16-le", None),
    ],
)
def test_reported_files(name: str, text: str, charset: str, replaced: int | None) -> None:
    doc = extract(name, (REPORTS / name).read_bytes())

    assert doc.text().startswith(text)
    assert (doc["charset"], doc.get("replaced_characters")) == (charset, replaced)
    if replaced:
        assert doc["language"] == "ru"
        assert doc.text().count("\ufffd") == replaced


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("korean.eml", "여객선은 아홉 시에 떠납니다. 똠방각하"),
        ("hebrew.eml", "המעבורת יוצאת בתשע"),
        ("html-iso-8859-2.eml", "Zażółć gęślą jaźń, dziękuję bardzo za wiadomość."),
        ("html-iso-8859-8.eml", "המעבורת יוצאת בתשע"),
        ("html-iso-2022-jp.eml", JAPANESE),
    ],
)
def test_reported_mails(name: str, text: str) -> None:
    """Their parts' headers declare the encoding."""
    assert extract(name, (REPORTS / name).read_bytes()).text() == text


def test_a_reported_mail_with_a_bad_byte() -> None:
    """Its header declares UTF-8: one character is replaced and counted."""
    doc = extract("utf8-bad-byte.eml", (REPORTS / "utf8-bad-byte.eml").read_bytes())
    assert doc.text().startswith("Паром отходит в девять часов утра.")
    assert (doc.text().count("\ufffd"), doc["replaced_characters"], doc["language"]) == (1, 1, "ru")


@pytest.mark.parametrize("ending", ["html", "txt", "md", "1"])
def test_a_field_charset_declares_the_encoding(ending: str) -> None:
    """``fetch_url`` sets it by HTTP's header; it counts more than a ``<meta>``."""
    page = f'<html><head><meta charset="iso-8859-1"></head><p>{FERRY}' if ending == "html" else FERRY
    doc = Document(f"a.{ending}", raw=page.encode("koi8-r"), charset="koi8-r")
    steps.extract_text()(doc)

    assert doc.text().strip() == FERRY.strip()
    assert doc["charset"] == "koi8-r"


@pytest.mark.parametrize(
    ("label", "raw", "text"),
    [
        ("utf-16", b"The ferry", "The ferry"),
        ("windows-31j", "①".encode("cp932"), "①"),
        ("iso-8859-1", b"it\x92s", "it’s"),
        ("utf-8", b"caf\xe9 and more", "caf\ufffd and more"),
    ],
)
def test_a_page_states_its_encoding(label: str, raw: bytes, text: str) -> None:
    for page in (b'<meta charset="%b">' % label.encode(), b'<?xml version="1.0" encoding="%b"?>' % label.encode()):
        assert extract("a.html", page + b"<p>" + raw).text() == text
