"""Submissions that nobody has thought of: manifests, containers and submissions, mutated by a seed."""

from __future__ import annotations

import io
import json
import random
import tarfile
import zipfile
from typing import Any, NamedTuple

TOKENS = (
    *(b"\0", b"\xff\xfe", b"..", b"/", b"../../etc/passwd", b"file:///etc/passwd", b"http://[", b"\r\n", b'"', b","),
    *(b"\x1b[2J", b"9" * 400, b"-1", b"1e999", b"sha256:", b"{}", b"[[[[", b"A" * 70_000, "\u202e\u200b".encode()),
)
"""What mutations put in."""

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 10**30, 1.5, "", " ", "\0", "..", "a/b", "x" * 5000, "\u202e", "\ud800"[:0], [], {}, ["a", 1]),
    *({"a": {"b": []}}, "file:///proc/self/environ", "http://169.254.169.254/", "ftp://h/x", "//", "http://[::1"),
)
"""What a field of a submission may be set to."""

FIELDS = (
    *("local_id", "primary_id", "profile_name", "priority", "digest", "size", "payload_type", "payload_file_name"),
    *("response_url", "submitter", "batchID", "erc_who", "mode", "delete", "payload_url", "manifest_url"),
)


class Mutant(NamedTuple):
    """What is submitted, and the file that it leads to."""

    name: str
    content: bytes
    submission: dict[str, Any]
    """Without the URL: that of the file is ``url_field``."""
    url_field: str


def mutant(seed: int, good_url: str) -> Mutant:
    """The same each time."""
    dice = random.Random(seed)
    kind = dice.choice(["m.csv", "m.jsonl", "c.zip", "c.tar", "c.tar.gz", "c.tar.bz2", "f.txt"])
    content = _content(kind, good_url)
    submission: dict[str, Any] = {"submitter": "tests", "local_id": f"mutant {seed}"}
    if dice.random() < 0.7:
        for _ in range(dice.randint(1, 4)):
            content = _mutated(content, dice)
    else:
        for _ in range(dice.randint(1, 3)):
            submission[dice.choice(FIELDS)] = dice.choice(VALUES)
    return Mutant(f"{seed}-{kind}", content, submission, "manifest_url" if kind.startswith("m") else "payload_url")


def _content(kind: str, good_url: str) -> bytes:
    rows = [{"url": good_url, "local_id": f"o{n // 2}", "file_name": f"{n}.txt", "priority": n} for n in range(8)]
    if kind == "m.csv":
        return (
            "url,local_id,file_name,priority\n" + "".join(",".join(map(str, r.values())) + "\n" for r in rows)
        ).encode()
    if kind == "m.jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    out = io.BytesIO()
    if kind == "c.zip":
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for n in range(6):
                archive.writestr(f"folder/{n}.txt", f"words {n} " * 50)
        return out.getvalue()
    if kind.startswith("c.tar"):
        mode = "w:" + kind.removeprefix("c.tar").removeprefix(".")
        with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
            for n in range(6):
                info = tarfile.TarInfo(f"folder/{n}" + "x" * (n * 40))
                info.size = 400
                archive.addfile(info, io.BytesIO(b"w" * 400))
        return out.getvalue()
    return b"plain words"


def _mutated(content: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(content) + 1)
    end = min(len(content), at + dice.choice([1, 2, 8, 64, 512]))
    match dice.randrange(5):
        case 0:
            return content[:at] + bytes(dice.randrange(256) for _ in range(end - at)) + content[end:]
        case 1:
            return content[:at]
        case 2:
            return content[:end] + content[at:end] * dice.choice([1, 50, 2000]) + content[end:]
        case 3:
            return content[:at] + content[end:]
        case _:
            return content[:at] + dice.choice(TOKENS) + content[at:]
