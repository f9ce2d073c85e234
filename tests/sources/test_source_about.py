"""The fields that ``Files`` gives: where a document comes from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from folders import scan, tree

from ferryman.errors import UsageError
from ferryman.sources import Files
from ferryman.sources.files import FIELDS, iso_time, mime_of

MAY = 1714557600


def fields(source: Files) -> dict[str, dict[str, Any]]:
    return {id: source.read(listed).fields for id, listed in scan(source).items()}


@pytest.mark.rule("files.fields")
def test_a_file_says_where_it_is(tmp_path: Path) -> None:
    """Its address as it can be opened, its name, size, time and type."""
    tree(tmp_path, "histories/henry v.txt")
    os.utime(tmp_path / "histories/henry v.txt", (MAY, MAY + 0.5))
    assert fields(Files(tmp_path)) == {
        "histories/henry v.txt": {
            "uri": f"file://{tmp_path}/histories/henry%20v.txt",
            "name": "henry v.txt",
            "size": 21,
            "modified": "2024-05-01T10:00:00Z",
            "mime": "text/plain",
        }
    }


@pytest.mark.rule("files.fields")
@pytest.mark.parametrize("base_url", ["https://example.org/plays", "https://example.org/plays/"])
def test_a_web_address_takes_the_root_s_place(tmp_path: Path, base_url: str) -> None:
    tree(tmp_path, "a b/100%#ç.txt")
    [found] = fields(Files(tmp_path, base_url=base_url)).values()
    assert found["uri"] == "https://example.org/plays/a%20b/100%25%23%C3%A7.txt"
    assert found["name"] == "100%#ç.txt"


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """A byte that is not UTF-8 stays encoded in the name, and is itself in the address."""
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.pdf")).touch()
    [found] = fields(Files(tmp_path)).values()
    assert (found["name"], found["mime"]) == ("%FF.pdf", "application/pdf")
    assert found["uri"] == f"file://{tmp_path}/%FF.pdf"


@pytest.mark.rule("files.fields")
def test_some_of_them_or_none(tmp_path: Path) -> None:
    tree(tmp_path, "a.md")
    assert fields(Files(tmp_path, fields=False)) == {"a.md": {}}
    assert fields(Files(tmp_path, fields=["name", "mime"])) == {"a.md": {"name": "a.md", "mime": "text/markdown"}}
    for wrong in ({"fields": ["name", "owner"]}, {"counted": "owner"}, {"base_url": "corpus"}, {"base_url": 1}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            Files(tmp_path, **wrong)  # type: ignore[arg-type]


def test_which_of_them_count() -> None:
    given = dict.fromkeys(FIELDS, "x")
    assert Files(".").counted(given) == {}
    assert Files(".", counted=["uri"]).counted(given) == {"uri": "x"}


def test_types_do_not_depend_on_the_machine() -> None:
    names = {
        "a.docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "A.PDF": "application/pdf",
        "a.tar.gz": "application/gzip",
        "a.py": "text/x-python",
        "README": "application/octet-stream",
        "a#b?.html": "text/html",
    }
    assert {name: mime_of(name) for name in names} == names


def test_times_that_are_none() -> None:
    """A disk may say anything."""
    assert iso_time(None) is None
    assert iso_time(1e15) is None
    assert iso_time(-1) == "1969-12-31T23:59:59Z"


def test_a_store_s_files_too(tmp_path: Path) -> None:
    """Their address is the store's, time as far as it says."""
    import fsspec

    memory = fsspec.filesystem("memory")
    root = f"/about-{tmp_path.name}"
    memory.pipe_file(f"{root}/a b.txt", b"text")
    [found] = fields(Files(f"memory:/{root}")).values()
    assert found["uri"] == f"memory:/{root}/a b.txt"
    assert (found["name"], found["size"], found["mime"]) == ("a b.txt", 4, "text/plain")
    assert found["modified"] is None or found["modified"].endswith("Z")
    memory.rm(root, recursive=True)
