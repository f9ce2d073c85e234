"""``extract_text``: real and broken files of every format, on the engine and by itself."""

from __future__ import annotations

import faulthandler
import random
from collections.abc import Iterator
from typing import Any

import pytest

from ferryman import account, limits, steps
from ferryman.document import Document
from ferryman.errors import BadDocument, Dropped, Unsupported, UsageError
from ferryman.testing.inprocess import InProcess
from tests.steps import corpus
from tests.support.plan_world import PlanWorld

MUSE = corpus.MUSE


def read(name: str, raw: bytes, **options: Any) -> list[Document]:
    out = steps.extract_text(**options)(Document(name, raw=raw))
    return out if isinstance(out, list) else [out]


def refusal(name: str, raw: bytes, **options: Any) -> str:
    with pytest.raises(BadDocument) as refused:
        read(name, raw, **options)
    return str(refused.value)


MADE = corpus.made()
SOUND = [name for name in MADE if name.startswith("muse.")]


@pytest.mark.parametrize("name", [name for name in SOUND if name != "muse.xlsx"])
def test_every_format_gives_its_text(name: str) -> None:
    """Whole sentences in their order, as UTF-8; the kind, the language, and the title where the format has one."""
    [doc, *_] = read(name, MADE[name])

    assert MUSE in doc.text()
    assert doc["language"] == "en"
    assert doc["content_type"]
    if name not in ("muse.xml", "muse.txt"):
        assert doc["title"] == "Henry V"


WHOLE = {
    "muse.docx": f"{MUSE}\n\nkept\ton\n\nin a box\n\none\ttwo\nthree\n\na note",
    "muse.pptx": f"{MUSE}\n\nSpeak up\n\nSecond slide",
    "muse.xlsx": "Plays\nMuse\t42",
    "muse.odt": f"Act I\n\n{MUSE}  !\n\na note\n\none\ttwo",
    "muse.epub": f"{MUSE}\n\nSecond chapter",
    "muse.html": f"Act\xa0I\n\n{MUSE}\n\none\ntwo\n\na\tb\n\nx\n  y",
    "muse.rtf": f"{MUSE}\ncafé",
    "muse.pdf": f"{MUSE}\n\nSecond page.",
}


@pytest.mark.parametrize("name", WHOLE)
def test_the_text_is_what_a_reader_sees(name: str) -> None:
    """Boxes, notes, tables and slides in their order; nothing that is deleted, hidden or repeated."""
    assert read(name, MADE[name])[0].text() == WHOLE[name]


def test_dates_and_authors_are_fields() -> None:
    """ISO 8601, in the zone that the file says, or none; several authors are one text."""
    found = {name: read(name, MADE[name])[0] for name in SOUND}

    assert found["muse.pdf"]["created"] == "2024-05-01T12:00:00+02:00"
    for name in ("muse.docx", "muse.xlsx", "muse.html", "muse.eml"):
        assert found[name]["created"] == "2024-05-01T10:00:00Z"
    assert found["muse.odt"]["modified"] == "2024-05-01T10:00:00"
    assert (found["muse.epub"]["created"], found["muse.epub"]["author"]) == ("1600", "W. Shakespeare; J. Fletcher")
    assert (found["muse.pdf"]["pages"], found["muse.pptx"]["pages"]) == (2, 2)


@pytest.mark.parametrize(
    ("name", "charset", "word"),
    [
        ("latin-1.txt", "cp1252", "Boxkämpfer"),
        ("utf-16.txt", "utf-16", "invention"),
        ("cp1251.txt", "cp1251", "французских"),
        ("shift-jis.txt", "cp932", "よたれそ"),
    ],
)
def test_plain_text_of_other_encodings(name: str, charset: str, word: str) -> None:
    """It is read by what its characters look like; the field ``charset`` says how."""
    [doc] = read(name, MADE[name])

    assert word in doc.text()
    assert doc["charset"] == charset


def test_markdown_and_plain_text_stay_as_they_are() -> None:
    """White space too; only control characters go, which destinations refuse."""
    kept = "a  \n\n\n\n    b\t\n"

    assert read("a.md", kept.encode())[0].text() == kept
    assert read("a.txt", kept.encode())[0].text() == kept
    assert read("a.txt", MADE["controls.txt"])[0].text() == "abc"


def test_what_the_document_has_is_not_overwritten() -> None:
    """A source's own title is better; ``prefix`` sets the fields apart."""
    doc = Document("a.pdf", raw=MADE["muse.pdf"], title="Mine", author=None)
    steps.extract_text(languages=None)(doc)
    assert (doc["title"], doc["author"], "language" in doc) == ("Mine", "W. Shakespeare", False)

    doc = Document("a.pdf", raw=MADE["muse.pdf"], title="Mine")
    steps.extract_text(prefix="file_")(doc)
    assert (doc["title"], doc["file_title"], doc["file_language"]) == ("Mine", "Henry V", "en")


def test_languages_can_be_named() -> None:
    """Of those that may be, the likeliest; of a few words what the document says, or nothing."""
    german = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.".encode()

    assert read("a.txt", german)[0]["language"] == "de"
    assert read("a.txt", german, languages=["EN", "fr"])[0]["language"] in ("en", "fr")
    assert "language" not in read("a.txt", b"few words")[0]
    assert read("a.html", b"<html lang='fr'><p>peu")[0]["language"] == "fr"


def test_a_document_without_content_goes_on() -> None:
    """Fields only: there is nothing to read."""
    doc = Document("a", title="x")
    assert steps.extract_text()(doc) is doc


def test_it_is_given_with_and_without_a_call() -> None:
    """``Plan.step("text", extract_text)`` is ``extract_text()``."""
    assert steps.extract_text(Document("a.txt", raw=b"x")).text() == "x"


# -- what cannot be read ---------------------------------------------------------------------------

READABLE = {"deep.rtf", "circle.pdf", "headers.eml", "wide.xlsx"}


@pytest.mark.parametrize("name", sorted(set(corpus.bad()) - READABLE))
def test_what_cannot_be_read_is_refused_in_words(name: str) -> None:
    """One line that names the document and says what to do; no trace of a stack."""
    said = refusal(name, MADE[name])

    assert said.startswith(f"{name}: ")
    assert "\n" not in said
    assert "Traceback" not in said
    assert len(said) < 400
    assert said.endswith(".")
    assert not said.endswith("..")


def test_the_reason_is_told() -> None:
    """Empty, encrypted, broken, a bomb, of an unknown kind."""
    files = MADE | corpus.shipped()
    for name, words in {
        "empty.pdf": "it is empty",
        "encrypted.epub": "protected (DRM)",
        "testPDF_no_extract_no_accessibility_owner_user.pdf": "encrypted. Save it without a password",
        "testWORD_protected_passtika.docx": "an encrypted Office file",
        "testODTEncrypted.odt": "ODT: it is encrypted",
        "testWORD.doc": "a Word file of before 2007",
        "cut-muse.docx": "DOCX: it is broken",
        "testEXCEL.xlsb": "it is of a test version of Excel 2007, or broken",
        "bomb.docx": "more than 67108864",
        "laughs.xml": "Maximum entity amplification",
        "picture.pdf": "a PNG picture",
        "binary.dat": "binary data of an unknown kind",
        "droste.zip": "Unpack it with steps.unpack()",
    }.items():
        assert words in refusal(name, files[name])


def test_sizes_are_limited() -> None:
    """Of the content, and of the text in it."""
    assert "more than max_bytes=10" in refusal("a.txt", b"x" * 11, max_bytes=10)
    assert "more than max_text_bytes=10" in refusal("a.txt", b"x" * 11, max_text_bytes=10)


def test_unknown_content_may_be_dropped_or_passed() -> None:
    """As the plan says; empty files are refused in any case."""
    raw = MADE["picture.pdf"]
    with pytest.raises(Dropped, match="a PNG picture"):
        read("a.png", raw, unknown="drop")
    [doc] = read("a.png", raw, unknown="pass")
    assert (doc.raw, doc.fields) == (raw, {})
    for unknown in ("drop", "pass"):
        assert "it is empty" in refusal("a.png", b"", unknown=unknown)


def test_arguments_that_cannot_be_meant() -> None:
    for options in ({"max_bytes": 0}, {"max_text_bytes": -1}, {"depth": -1}, {"unknown": "ignore"}):
        with pytest.raises(ValueError, match="give"):
            steps.extract_text(**options)  # type: ignore[arg-type]


def test_a_missing_library_is_named_when_the_step_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """So ``plan check`` finds it, and no document is blamed."""
    from ferryman.steps import extract

    monkeypatch.setattr(extract, "find_spec", lambda name: None if name == "lxml" else object())
    with pytest.raises(UsageError, match=r"needs lxml, not installed here: pip install 'ferryman\[extract\]'"):
        steps.extract_text()


def mutated(seed: int, raw: bytes) -> Iterator[bytes]:
    chance = random.Random(seed)
    for _ in range(2):
        damaged = bytearray(raw)
        for _ in range(chance.randint(1, 20)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        yield bytes(damaged[: chance.randint(1, len(damaged))]) if chance.random() < 0.5 else bytes(damaged)


# -- attachments -----------------------------------------------------------------------------------


def test_attachments_are_children() -> None:
    """Read likewise, keyed by their names; one that cannot be read is refused, the others are not."""
    mail, play, broken, picture = read("m.eml", MADE["muse.eml"])

    assert (mail.text(), mail["title"], mail["to"]) == (MUSE, "Henry V", "a@example.org")
    assert (play.id, play["title"], play["file_name"], play.refused) == (
        "m.eml#play.docx",
        "Henry V",
        "play.docx",
        None,
    )
    assert "in a box" in play.text()
    assert isinstance(broken.refused, str)
    assert broken.refused.startswith("m.eml#broken.pdf: PDF: it is broken")
    assert isinstance(picture.refused, Unsupported)
    assert "a PNG picture" in str(picture.refused)
    assert [doc.id for doc in read("m.eml", MADE["muse.eml"], unknown="drop")] == [
        "m.eml",
        "m.eml#play.docx",
        "m.eml#broken.pdf",
    ]


def test_mails_in_mails_nest_as_deep_as_is_said() -> None:
    """Each has its own attachments; deeper ones are left out."""
    outer = corpus.mail(inner=corpus.mail()).as_bytes()

    ids = [doc.id for doc in read("m.eml", outer, unknown="drop")]
    assert ids == ["m.eml", "m.eml#play.docx", "m.eml#broken.pdf", "m.eml#3", "m.eml#3#play.docx", "m.eml#3#broken.pdf"]
    assert len(read("m.eml", outer, unknown="drop", depth=1)) == 4
    assert len(read("m.eml", outer, depth=0)) == 1


def test_archives_are_refused_with_the_step_that_reads_them() -> None:
    """In an archive a deeper one; what is attached to a mail no step unpacks."""
    inner = corpus.zipped({"a.txt": b"deep"})
    outer = corpus.zipped({"in.zip": inner})
    [child] = steps.unpack()(Document("x.zip", raw=corpus.zipped({"mid.zip": outer})))
    with pytest.raises(BadDocument, match=r"nested deeper than depth=1: steps\.unpack\(depth=2\)\.$"):
        steps.extract_text()(child)
    [child] = steps.unpack(depth=2)(Document("x.zip", raw=corpus.zipped({"mid.zip": outer})))
    with pytest.raises(BadDocument, match=r"nested deeper than depth=2: steps\.unpack\(depth=3\)\.$"):
        steps.extract_text()(child)
    message = corpus.mail()
    message.add_attachment(inner, maintype="application", subtype="zip", filename="a.zip")
    assert "a zip archive, of which no text is read. Attach the files in it." in str(
        read("m", message.as_bytes())[-1].refused
    )
    assert "Unpack it with steps.unpack() before." in refusal("a.zip", inner)
    assert "unpack it with steps.unpack() before." in refusal("a.tgz", corpus.shipped()["TIKA-216.tgz"])


def test_attachments_that_are_dropped_are_named() -> None:
    """``unknown="drop"`` leaves no trace of its own."""
    doc, *_ = read("m.eml", MADE["muse.eml"], unknown="drop")
    assert doc["unread"] == ["attachments"]
    assert "unread" not in read("m.eml", MADE["muse.eml"])[0]


def test_attachments_of_one_name() -> None:
    """Get keys of their own, the same on every run."""
    message = corpus.mail()
    message.add_attachment("second", filename="play.docx")
    message.add_attachment("third", filename="play.docx")

    keys = [doc.id.partition("#")[2] for doc in read("m", message.as_bytes())]
    assert keys[1:] == ["play.docx", "broken.pdf", "stage.png", "play.docx-2", "play.docx-3"]


# -- on the engine ---------------------------------------------------------------------------------


@pytest.mark.rule("child.refused")
def test_a_refused_attachment_harms_only_itself(net: PlanWorld) -> None:
    """ERROR_DOC with its reason; its mail and its siblings are delivered; nothing is tried again."""
    net.source().step("text", steps.extract_text()).destination("out", net.out("out"), backoff=0)
    net.documents.append({"id": "m.eml", "raw": MADE["muse.eml"]})
    summary = net.run()

    assert (summary.exit, summary.delivered, summary.rejected) == (3, 2, 2)
    bad = {row["document"]: row["message"] for row in account.deliveries(net.root, status="rejected", plan=net.plan)}
    assert set(bad) == {"m.eml#broken.pdf", "m.eml#stage.png"}
    assert bad["m.eml#stage.png"].startswith("m.eml#stage.png: it is a PNG picture")
    assert net.run().waves == 0


@pytest.mark.rule("kill.named", "kill.others")
def test_a_file_whose_reader_ends_the_process_is_named(net: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sheet of two cells takes half a terabyte in the reader: with the guard off it aborts. It ends as ERROR_DOC."""
    monkeypatch.setattr(limits, "EXTRACT_EMPTY_CELLS", limits.EXTRACT_EMPTY_CELLS)  # put back what the step does here
    read_text = steps.extract_text()

    def quietly(doc: Document) -> Any:
        limits.EXTRACT_EMPTY_CELLS = 1 << 40  # type: ignore[misc] # in a child process as well
        faulthandler.disable()  # pytest's report of the abort would fill the screen
        return read_text(doc)

    net.source().step("text", quietly).destination("out", net.out("out"), backoff=0)
    for name in ("muse.docx", "wide.xlsx", "muse.pdf"):
        net.documents.append({"id": name, "raw": MADE[name]})
    summary = net.run(runner=InProcess(fork=True, failures=1))

    assert (summary.exit, summary.delivered, summary.rejected) == (3, 2, 1)
    [bad] = account.deliveries(net.root, status="rejected", plan=net.plan)
    assert bad["document"] == "wide.xlsx"
    assert bad["message"] == ("step text: PermanentError: it ended its process in each of 3 tries: signal 6 (SIGABRT)")


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_damaged_files_stop_no_run(net: PlanWorld, seed: int) -> None:
    """Every file of the corpus with random bytes changed, some cut off: each is delivered or ERROR_DOC."""
    net.source().step("text", steps.extract_text(), timeout=20).destination("out", net.out("out"), attempts=1)
    for name, raw in (corpus.shipped() | {name: MADE[name] for name in SOUND}).items():
        for n, damaged in enumerate(mutated(seed, raw)):
            net.documents.append({"id": f"{n}-{name}", "raw": damaged})
    summary = net.run(runner=InProcess(fork=True, failures=1))

    assert summary.pending == summary.in_doubt == summary.failed == 0
    assert summary.delivered + summary.rejected >= len(net.documents)
