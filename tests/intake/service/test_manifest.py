"""Manifests: what is read of them, and what is refused with the line it is in."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ferryman.intake.service.errors import CorruptSubmission
from ferryman.intake.service.manifest import check_digest, check_path, group_by_object, parse_manifest
from ferryman.net.urls import redact

BASE = "http://host/dir/manifest.csv"
SHA = "a" * 64


def test_csv() -> None:
    """Columns by name in any order and spelling; URLs may be relative; other columns are fields of the document."""
    text = f"Local ID,url,digest,size,Title\nark:/1,a.txt,SHA-256:{SHA.upper()},12,Hamlet\n,http://x/b%20c.txt,,,\n"
    first, second = parse_manifest(text.encode(), BASE)

    assert first.entry.url == "http://host/dir/a.txt"
    assert (first.local_id, first.entry.digest, first.entry.size) == ("ark:/1", f"sha256:{SHA}", 12)
    assert first.entry.fields == {"title": "Hamlet"}
    assert (second.line, second.local_id, second.entry.fields) == (3, "", {})


def test_json_lines() -> None:
    """A line that begins with { makes it JSON lines; values keep their types."""
    (row,) = parse_manifest(b'\n{"url": "http://x/a", "localId": 7, "pages": 3, "size": 1}\n', BASE)

    assert (row.local_id, row.entry.size, row.entry.fields) == ("7", 1, {"pages": 3})


CHECKM = """\
#%checkm_0.7
#%profile | http://uc3.cdlib.org/registry/ingest/manifest/mrt-single-file-batch-manifest
#%prefix | mrt: | http://merritt.cdlib.org/terms#
#%fields | nfo:fileUrl | nfo:hashAlgorithm | nfo:hashValue | nfo:fileSize | nfo:fileLastModified | nfo:fileName | \
mrt:primaryIdentifier | mrt:localIdentifier | mrt:creator | mrt:title | mrt:date
"""
"""As the systems of the page write their manifests."""


def test_checkm() -> None:
    """Fields by name, in any order and case; trailing columns may be missing; comments are none of the files."""
    lines = f"http://x/a.txt | SHA-256 | {SHA} | 12 | | page 1.txt | ark:/1/2 | map-1 | Doe, J. | A map | 1888\n"
    text = f"{CHECKM}# by hand\n\n{lines}b.txt | | | | | \n#%EOF\nwhatever comes then"
    first, second = parse_manifest(text.encode(), BASE)
    assert (first.entry.url, first.entry.path, first.entry.size) == ("http://x/a.txt", "page 1.txt", 12)
    assert (first.entry.digest, first.local_id, first.primary_id) == (f"sha256:{SHA}", "map-1", "ark:/1/2")
    assert first.entry.fields == {"erc_who": "Doe, J.", "erc_what": "A map", "erc_when": "1888"}
    assert (second.line, second.entry.url, second.entry.digest) == (8, "http://host/dir/b.txt", "")
    plain = f"#%checkm_0.7\nhttp://x/a | md5 | {'b' * 32} | 1 | | c.txt\n#%eof\n"
    (row,) = parse_manifest(plain.encode(), BASE)
    assert (row.entry.digest, row.entry.path) == (f"md5:{'b' * 32}", "c.txt")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"#%checkm_0.7\n#%eof\n", "names no files"),
        (b"#%checkm_0.7\nhttp://x/a\n", "no #%eof at its end"),
        (b"#%checkm_0.7\n#%fields | nfo:fileUrl\nhttp://x/a | b\n#%eof\n", "line 3 of the manifest has more columns"),
        (b"#%checkm_0.7\n#%fields | nfo:fileName\na\n#%eof\n", "line 3 of the manifest: there is no url"),
        (b"#%checkm_0.7\nhttp://x/a | adler32 | 11e60398\n#%eof\n", "line 2 of the manifest: the digest 'adler32:"),
        (b"\xef\xbb\xbf <?xml version='1.0'?><objectInfo/>", "XML or a web page"),
        (b"", "names no files"),
        (b"url\n", "names no files"),
        (b"link\nhttp://x/a\n", "no column url"),
        (b"url,size\nhttp://x/a\n", "line 2 of the manifest has 1 columns, the first one 2"),
        (b"url,size\nhttp://x/a,many\n", "line 2 of the manifest: size 'many' is not an integer"),
        (b"url\nftp://x/a\n", "line 2 of the manifest: the url ftp://x/a is not one of http, https, file"),
        (b"url\nfile://other/a\n", "not a file of this machine"),
        (b"url,digest\nhttp://x/a,sha256:12\n", "line 2 of the manifest: the digest 'sha256:12'"),
        (b"url,file_name\nhttp://x/a,../../etc/passwd\n", "leads out of the object"),
        (b"url,file_name\nhttp://x/a,/etc/passwd\n", "leads out of the object"),
        (b"url\n\xff\xfe\n", "not UTF-8 at byte 4"),
        (b'{"url": "http://x/a"}\n{"url": \n', "line 2 of the manifest is not JSON"),
        (b'{"url": "http://x/a"}\n["url"]\n', "line 2 of the manifest is JSON, but not an object"),
        (b'url\n"http://x/a\n', "not CSV"),
    ],
)
def test_refused(text: bytes, why: str) -> None:
    """A corrupt manifest says which line is at fault."""
    with pytest.raises(CorruptSubmission, match=why.replace("(", r"\(").replace("[", r"\[")):
        group_by_object(parse_manifest(text, BASE))


LARGE = {
    "lines": "b'url' + b'\\na' * 3_000_000",
    "columns": "b'url' + b''.join(b',c%d' % n for n in range(1000)) + (b'\\na' + b',22' * 1000) * 5000",
    "a JSON line": "b'{\"url\":\"a\",\"x\":[' + b'[],' * 7_000_000 + b'1]}'",
    "JSON lines": "(b'{\"url\":\"a\",\"x\":[' + b'[],' * 3000 + b'1]}\\n') * 2000",
    "a CSV row": "b'url' + b',\"a\\nb\"' * 3_000_000",
    "wide characters": "b'url\\n' + b'x' * 20_000_000 + '\U0001f600'.encode() + b'\\n'",
}
"""Manifests of some 20 MB that would take gigabytes."""

READ = """
import resource
from ferryman.intake.service.errors import CorruptSubmission
from ferryman.intake.service.manifest import group_by_object, parse_manifest
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
text = {text}
try:
    group_by_object(parse_manifest(text, "http://x/m"))
except CorruptSubmission as e:
    print(e)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.rule("intake.hostile")
@pytest.mark.parametrize("what", LARGE)
def test_a_manifest_takes_no_more_memory_than_it_may(what: str) -> None:
    """It is refused by its lines, fields and rows, not by its bytes alone: a line of two bytes takes a kilobyte."""
    command = [sys.executable, "-c", READ.replace("{text}", LARGE[what])]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    why, kilobytes = told.stdout.splitlines()
    assert "of the manifest: its row has more than" in why or "the manifest has more than" in why
    assert int(kilobytes) < 250_000


def test_lines_of_one_local_id_are_one_object() -> None:
    """In the order in which objects are first named; a line without local id is an object of its own."""
    text = b"url,local_id,profile_name\nb:/,,\n".replace(b"b:/", b"http://x/1")
    text += b"http://x/2,one,A\nhttp://x/3,two,A\nhttp://x/4,one,A\nhttp://x/5,one,B\n"

    found = group_by_object(parse_manifest(text, BASE))

    assert [(one.key, len(one.rows)) for one in found] == [("line 2", 1), ("A/one", 2), ("A/two", 1), ("B/one", 1)]


def test_each_file_has_its_place() -> None:
    """Files of one name get numbers; a place that was asked for twice is refused."""
    text = b"url,local_id\nhttp://x/1/page.txt,o\nhttp://x/2/page.txt,o\nhttp://x/3/,o\n"
    (one,) = group_by_object(parse_manifest(text, BASE))
    assert [row.entry.path for row in one.rows] == ["page.txt", "page-2.txt", "file"]

    twice = b"url,local_id,file_name\nhttp://x/1,o,a\nhttp://x/2,o,a\n"
    with pytest.raises(CorruptSubmission, match="line 3 of the manifest: the file_name 'a' is also that of line 2"):
        group_by_object(parse_manifest(twice, BASE))


def test_digests() -> None:
    """Known by their name, or by their length."""
    assert check_digest("d" * 32) == "md5:" + "d" * 32
    assert check_digest("SHA-1=" + "d" * 40) == "sha1:" + "d" * 40
    with pytest.raises(CorruptSubmission):
        check_digest("crc32:12345678")


@pytest.mark.parametrize("path", ["..", "a/../../b", "/a", "C:\\a", "a\0b", "", ".", "n" * 256, "a\\..\\b"])
def test_no_place_for_a_file(path: str) -> None:
    """Paths that climb, or that no file can have."""
    with pytest.raises(CorruptSubmission):
        check_path(path)


def test_secrets_are_not_shown() -> None:
    """User, password and query of a URL appear in no message."""
    assert redact("https://me:secret@host:8443/a?token=secret") == "https://host:8443/a?…"


def test_objects_whose_names_have_slashes_have_keys_of_their_own() -> None:
    """Else one of them would be taken for the other, and no job be made of it, after a kill."""
    rows = [f"https://e.org/{n}.txt,{names}\n" for n, names in enumerate(("a,b/c", "a/b,c", "a%2Fb,c", ",a/b/c"))]
    text = "url,profile_name,local_id\n" + "".join(rows)
    objects = group_by_object(parse_manifest(text.encode(), "https://e.org/m.csv"))
    assert len({one.key for one in objects}) == 4
