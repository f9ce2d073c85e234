"""``unpack``: archives of all kinds, and what is in them that may not come out."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from ferryman import account, steps
from ferryman.document import Document
from ferryman.errors import BadDocument, Dropped
from tests.steps import corpus
from tests.support.plan_world import PlanWorld

FILES = {"a.txt": b"one", "sub/b c.txt": b"two", "é.txt": b""}
SHIPPED = corpus.shipped()


def tar(files: dict[str, bytes], packed: str = "", *others: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{packed}") as archive:  # type: ignore[call-overload]
        for other in others:
            archive.addfile(other)
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def unpacked(raw: bytes, name: str = "x", **options: Any) -> list[Document]:
    out = steps.unpack(**options)(Document(name, raw=raw))
    return out if isinstance(out, list) else [out]


def info(name: str, **attributes: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for attribute, value in attributes.items():
        setattr(made, attribute, value)
    return made


PACKED = {
    "zip": corpus.zipped(FILES),
    "tar": tar(FILES),
    "tar.gz": tar(FILES, "gz"),
    "tar.bz2": tar(FILES, "bz2"),
    "tar.xz": tar(FILES, "xz"),
    "tar.zst": bytes(pa.compress(tar(FILES), codec="zstd", asbytes=True)),
}


@pytest.mark.parametrize("kind", PACKED)
def test_members_are_children(kind: str) -> None:
    """Keyed by their paths, with their bytes; the archive itself goes no further; its name says nothing."""
    found = unpacked(PACKED[kind])

    assert {doc.id: doc.raw for doc in found} == {"x#a.txt": b"one", "x#sub%2Fb%20c.txt": b"two", "x#%C3%A9.txt": b""}
    assert {doc.parent_id for doc in found} == {"x"}
    assert not any(doc.refused for doc in found)


@pytest.mark.parametrize(
    "raw",
    [None, b"", b"text", b"\x1f\x8b broken", bytes(1000), corpus.docx(), corpus.epub(), corpus.pdf(["x"])],
    ids=["none", "empty", "text", "gzip", "zeros", "docx", "epub", "pdf"],
)
def test_what_is_no_archive_goes_on(raw: bytes | None) -> None:
    """As it is: documents that are zip archives inside are documents."""
    doc = Document("x", raw=raw)

    assert steps.unpack()(doc) is doc
    assert doc.raw == raw


def test_a_single_compressed_file_is_no_archive() -> None:
    """Sources unpack those."""
    import gzip

    [doc] = unpacked(gzip.compress(b"text " * 1000))
    assert doc.id == "x"


CLIMBING = ["../up.txt", "a/../../up.txt", "/etc/passwd", "C:/up.txt", "..\\up.txt", "\\\\host\\up.txt"]


@pytest.mark.parametrize("name", CLIMBING)
@pytest.mark.parametrize("make", [corpus.zipped, tar], ids=["zip", "tar"])
def test_paths_that_lead_out_are_refused(make: Callable[[Any], bytes], name: str) -> None:
    """By their names; the others come out."""
    found = unpacked(make({name: b"bad", "good.txt": b"good"}))

    bad = [doc for doc in found if doc.refused]
    assert len(bad) == 1
    assert "has a path that leads out of the archive" in str(bad[0].refused)
    assert repr(name) in str(bad[0].refused)
    assert [doc.raw for doc in found if not doc.refused] == [b"good"]


REPORTS = Path(corpus.__file__).parent / "reports"


def zip_of(raw_name: bytes, flags: int = 0, extra: bytes = b"") -> bytes:
    """A zip with one member, whose name is these bytes."""
    placeholder = "n" * len(raw_name)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        member = zipfile.ZipInfo(placeholder)
        member.extra = extra
        archive.writestr(member, "report")
    return out.getvalue().replace(placeholder.encode(), raw_name)


def unicode_path(raw_name: bytes, path: str, version: int = 1) -> bytes:
    data = struct.pack("<BI", version, zlib.crc32(raw_name)) + path.encode()
    return struct.pack("<HH", 0x7075, len(data)) + data


def tar_of(raw_name: bytes, form: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar with one member, whose name is these bytes; without extended headers, as ``tar`` makes it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        archive.addfile(info(raw_name.decode("utf-8", "surrogateescape"), size=6), io.BytesIO(b"report"))
    return out.getvalue()


@pytest.mark.parametrize(
    ("raw", "names", "path"),
    [
        ((REPORTS / "cp866.zip").read_bytes(), "cp866", "Отчёт.txt"),
        ((REPORTS / "cp866.zip").read_bytes(), "", "ÄΓτ±Γ.txt"),
        (zip_of("報告.txt".encode("cp932")), "cp932", "報告.txt"),
        (zip_of("Größe.txt".encode("cp1252")), "cp1252", "Größe.txt"),
        (zip_of("Größe.txt".encode("cp437")), "", "Größe.txt"),
        (zip_of("Größe.txt".encode()), "", "Größe.txt"),
        (zip_of("報告.txt".encode()), "", "報告.txt"),
        ((REPORTS / "unicode-path.zip").read_bytes(), "", "Отчёт.txt"),
        (zip_of(b"??.txt", extra=b"\x01\x99\x02\0ab" + unicode_path(b"??.txt", "報告.txt")), "cp866", "報告.txt"),
        (zip_of(b"a.txt", extra=unicode_path(b"b.txt", "報告.txt")), "", "a.txt"),
        (zip_of(b"a.txt", extra=unicode_path(b"a.txt", "b.txt", version=2)), "", "a.txt"),
        ((REPORTS / "latin1.tar").read_bytes(), "", "café.txt"),
        (tar_of("Größe €.txt".encode("cp1252")), "", "Größe €.txt"),
        (tar_of("Отчёт.txt".encode("koi8-r")), "koi8-r", "Отчёт.txt"),
        (tar_of("Отчёт.txt".encode("koi8-r"), tarfile.PAX_FORMAT), "koi8-r", "Отчёт.txt"),
        (tar_of("Отчёт.txt".encode()), "", "Отчёт.txt"),
        (tar_of(b"\x81\x8d.txt"), "", "\x81\x8d.txt"),
        (tar_of(("Отчёт/" * 40 + "a.txt").encode("koi8-r")), "koi8-r", "Отчёт/" * 40 + "a.txt"),
    ],
    ids=range(18),
)
def test_names_of_members(raw: bytes, names: str, path: str) -> None:
    """UTF-8 where the archive says so or where it is valid, else as ``names`` says, or by the kind of archive."""
    [doc] = unpacked(raw, names=names)

    assert doc.id == Document("x").child(path).id
    assert (doc.raw, doc.refused) == (b"text" if path == "café.txt" else b"report", None)


def test_names_that_an_archive_declares_are_not_decoded_anew() -> None:
    """A zip's flagged ones, those of a tar's extended headers; also in archives inside."""
    inner = {"Größe.txt": b"report"}
    for raw in (corpus.zipped(inner), tar(inner), tar({"in.zip": zip_of("Größe.txt".encode("cp1252"))})):
        [doc] = unpacked(raw, names="cp1252", depth=2)
        assert doc.id.endswith(quote("Größe.txt"))


def test_a_path_that_leads_out_in_another_encoding() -> None:
    """The path that counts is the decoded one, also if it is in an extra field."""
    [doc] = unpacked(zip_of(b"a.txt", extra=unicode_path(b"a.txt", "../a.txt")))
    assert "has a path that leads out" in str(doc.refused)


def test_links_and_devices_are_refused() -> None:
    """In a tar and in a zip."""
    others = (
        info("soft", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        info("hard", type=tarfile.LNKTYPE, linkname="a.txt"),
        info("device", type=tarfile.CHRTYPE),
        info("pipe", type=tarfile.FIFOTYPE),
        info("folder", type=tarfile.DIRTYPE),
    )
    found = {doc.id[2:]: doc.refused for doc in unpacked(tar({"a.txt": b"one"}, "gz", *others))}
    assert {name for name, why in found.items() if why} == {"soft", "hard", "device", "pipe"}
    assert "is a link, not a file" in str(found["soft"])
    assert "is a device, not a file" in str(found["pipe"])

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    [doc] = unpacked(out.getvalue())
    assert "is a link" in str(doc.refused)


def test_an_encrypted_member_is_refused() -> None:
    """A real one."""
    refused = [doc.refused for doc in unpacked(SHIPPED["testZipEncrypted.zip"])]

    assert any("is encrypted. Pack it without a password" in str(why) for why in refused)


def test_a_broken_member_hides_no_other() -> None:
    """Its checksum is wrong."""
    raw = bytearray(corpus.zipped({"a.txt": b"one" * 100, "b.txt": b"two"}))
    at = raw.index(b"a.txt") + 6
    raw[at] ^= 0xFF
    found = {doc.id: doc for doc in unpacked(bytes(raw))}

    assert "'a.txt' is broken" in str(found["x#a.txt"].refused)
    assert found["x#b.txt"].raw == b"two"


@pytest.mark.parametrize("kind", [kind for kind in PACKED if kind != "tar"])
def test_a_bomb_is_refused_as_a_whole(kind: str) -> None:
    """Its ratio, its size, the number of its members: nothing of it goes on."""
    zeros = {"zeros": bytes(20_000_000)}
    raw = {
        "zip": lambda: corpus.zipped(zeros),
        "tar.zst": lambda: bytes(pa.compress(tar(zeros), codec="zstd", asbytes=True)),
    }.get(kind, lambda: tar(zeros, kind.removeprefix("tar.")))()
    with pytest.raises(
        BadDocument, match=r"^x: it unpacks to more than max_ratio=200 times its size, as a decompression bomb does"
    ):
        unpacked(raw)
    with pytest.raises(BadDocument, match="more than max_bytes=1000000"):
        unpacked(raw, max_bytes=1_000_000)
    with pytest.raises(BadDocument, match="more than max_members=2 members"):
        unpacked(PACKED[kind], max_members=2)
    assert len(unpacked(raw, max_ratio=1e6)) == 1


def test_archives_inside_are_unpacked_as_deep_as_is_said() -> None:
    """Their members are children of them."""
    inner = corpus.zipped({"deep.txt": b"deep"})
    raw = tar({"in.zip": corpus.zipped({"inner.zip": inner, "mid.txt": b"mid"}), "top.txt": b"top"}, "gz")

    assert {doc.id for doc in unpacked(raw)} == {"x#in.zip", "x#top.txt"}
    assert {doc.id for doc in unpacked(raw, depth=2)} == {"x#in.zip#inner.zip", "x#in.zip#mid.txt", "x#top.txt"}
    assert {doc.id: doc.parent_id for doc in unpacked(raw, depth=9)} == {
        "x#in.zip#inner.zip#deep.txt": "x#in.zip#inner.zip",
        "x#in.zip#mid.txt": "x#in.zip",
        "x#top.txt": "x",
    }


def test_an_archive_that_contains_itself_ends() -> None:
    """A real one: by its depth."""
    found = unpacked(SHIPPED["droste.zip"], depth=5)
    assert found
    assert max(doc.id.count("#") for doc in found) <= 5


def test_limits_count_archives_inside() -> None:
    """What a bomb hides one level deeper is one still."""
    bomb = corpus.zipped({"zeros": bytes(20_000_000)})
    with pytest.raises(BadDocument, match="as a decompression bomb does"):
        unpacked(corpus.zipped({"bomb.zip": bomb}), depth=2)


def test_broken_archives_are_refused() -> None:
    """Cut off, of several parts, lying about themselves."""
    lying = SHIPPED["testZIP_corrupted_oom.zip"]
    for raw in (PACKED["zip"][:100], PACKED["tar.xz"][:120], tar({"a": b"x" * 5000})[:2000], lying):
        with pytest.raises(BadDocument, match=r"^x: the archive is broken: .+\. Pack it again\.$"):
            unpacked(raw)
    with pytest.raises(Dropped, match="an archive without members"):
        unpacked(corpus.zipped({}))


def test_of_members_of_one_path_the_last_counts() -> None:
    """As unpacking over each other would have it."""
    raw = tar({"a.txt": b"old"})[:1024] + tar({"a.txt": b"new"})

    [doc] = unpacked(raw)
    assert doc.raw == b"new"


def test_arguments_that_cannot_be_meant() -> None:
    for name in ("max_bytes", "max_members", "max_ratio", "depth"):
        with pytest.raises(ValueError, match="above 0"):
            steps.unpack(**{name: 0})
    for names in ("cp999", "hex"):
        with pytest.raises(ValueError, match="give an encoding that Python knows"):
            steps.unpack(names=names)


@pytest.mark.rule("child.refused")
def test_on_the_engine_a_refused_member_harms_only_itself(place: Path) -> None:
    """ERROR_DOC by its name; a later version of the archive brings it; text is read out of the others."""
    net = PlanWorld.empty(place)
    made = net.source().step("unpack", steps.unpack).step("text", steps.extract_text)
    made.destination("out", net.out("out"), backoff=0)
    net.documents.append({"id": "x.zip", "raw": corpus.zipped({"../a.txt": b"bad", "b.txt": b"good"})})
    summary = net.run()
    assert (summary.exit, summary.delivered, summary.rejected) == (3, 1, 1)
    [bad] = account.deliveries(net.root, status="rejected", plan=net.plan)
    assert bad["document"] == "x.zip#..%2Fa.txt"
    assert bad["message"].startswith("x.zip: member '../a.txt' has a path that leads out")
    assert net.run().waves == 0

    net.documents[0] = {"id": "x.zip", "raw": corpus.zipped({"a.txt": b"now good", "b.txt": b"good"})}
    summary = net.run()
    assert (summary.exit, summary.rejected) == (0, 0)


@pytest.mark.rule("child.refused")
def test_a_retry_looks_again_at_what_was_refused(place: Path) -> None:
    """A person who has raised a limit has it taken up again; what was delivered is not sent again."""
    net = PlanWorld.empty(place)
    allowed = place / "allowed"

    def step(doc: Document) -> list[Document]:
        good, bad = doc.child("good", raw=b"1"), doc.child("bad", raw=b"2")
        bad.refused = None if allowed.exists() else f"{doc.id}: not yet"
        return [good, bad]

    net.source().step("step", step).destination("out", net.out("out"), backoff=0)
    net.put("d")
    assert (net.run().rejected, net.arrived("out")) == (1, {"d#good": 1})
    assert net.retry(document="d#bad").count == 1
    assert net.run().rejected == 1
    allowed.touch()
    assert net.retry(document="d#bad").count == 1
    assert net.run().exit == 0
    assert net.arrived("out") == {"d#good": 1, "d#bad": 1}
