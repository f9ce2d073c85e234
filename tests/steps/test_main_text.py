"""``main_text``: a page without its navigation, found in a child process with limits."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest

from ferryman.document import Document
from ferryman.errors import BadDocument, Unavailable
from ferryman.steps import main_text, split_text
from ferryman.steps.page_text import MainTextProcess, PageRequest

PAGE = """<html lang="de-AT"><head><title>Install - Docs</title><meta name="author" content="Ann Miller">
<meta property="article:published_time" content="2024-05-01T10:00:00Z"></head><body>
<nav><a href="/">Home page</a> <a href="/x">Other page</a> <a href=/y>Further pages</a></nav>
<main><h1 id="install">Install <a class="headerlink" href="#install">¶</a></h1>
<p>This is the first paragraph about how to install the thing on your machine today, with care.</p>
<section id="linux"><h2>On Linux</h2><p>Use the package manager, which has it in all versions since long ago.</p>
<pre><code>apt-get install thing
# not a heading
</code></pre></section>
<h2><a name="values"></a>A table</h2><table><tr><th>Name</th><th>Value</th></tr><tr><td>a</td><td>1</td></tr></table>
<ul><li>One thing to know</li><li>Another thing to know</li></ul>
<h2>Without an anchor</h2><p>The end of the page, which is no longer than it has to be for this test.</p>
</main><footer>Copyright 2023 Somebody. <a href=/imprint>Imprint</a></footer></body></html>"""


def page(raw: str | bytes = PAGE, id: str = "https://x.org/a", **fields: Any) -> Document:
    body = raw.encode() if isinstance(raw, str) else raw
    return Document(id, raw=body, **{"url": "https://x.org/a", "mime": "text/html", **fields})


def test_markdown_without_navigation() -> None:
    doc = main_text(page())
    text = doc.text()
    for part in (
        "# Install\n\nThis is the first paragraph",
        "## On Linux",
        "```\napt-get install thing\n# not a heading\n```\n\n## A table",
        "| Name | Value |\n|---|---|\n| a | 1 |",
        "- One thing to know",
    ):
        assert part in text
    assert not any(word in text for word in ("Other page", "Imprint", "¶"))
    assert {name: doc[name] for name in ("title", "author", "created", "language", "content_type")} == {
        "title": "Install",
        "author": "Ann Miller",
        "created": "2024-05-01",
        "language": "de-AT",
        "content_type": "text/markdown",
    }


@pytest.mark.parametrize("kind", ["markdown", "text"])
def test_each_section_keeps_its_anchor(kind: Any) -> None:
    doc = main_text(format=kind)(page())
    parts = split_text(by="headings", copy="url")(doc)
    assert [(part.get("headings"), part.get("anchor"), part["url"]) for part in parts] == [
        (["Install"], "install", "https://x.org/a#install"),
        (["Install", "On Linux"], "linux", "https://x.org/a#linux"),
        (["Install", "A table"], "values", "https://x.org/a#values"),
        (["Install", "Without an anchor"], None, "https://x.org/a"),
    ]


def test_fields_that_are_there_stay() -> None:
    doc = main_text(page(title="Mine", language="en"))
    assert (doc["title"], doc["language"]) == ("Mine", "en")


def test_the_same_text_in_many_pages_stays() -> None:
    """The library can leave out what it has seen before, by which the text of a page would depend on other pages."""
    step = main_text()
    texts = {step(page(id=f"https://x.org/{n}")).text() for n in range(5)}
    assert len(texts) == 1


def test_what_is_not_a_page_goes_to_others() -> None:
    pdf = Document("https://x.org/a.pdf", raw=b"%PDF-1.4", mime="application/pdf")
    assert main_text(pdf.copy()) == pdf

    def other(doc: Document) -> Document:
        doc["read"] = True
        return doc

    assert main_text(others=other)(pdf.copy())["read"]
    assert main_text(Document("a")).raw is None


@pytest.mark.parametrize("raw", ["", "   ", "<!-- nothing -->", "<html></html>", "<p>hi"])
def test_pages_with_little_or_nothing(raw: str) -> None:
    assert main_text(page(raw)).text() in ("", "hi")


def test_a_list_of_links_keeps_what_can_be_seen() -> None:
    links = "".join(f"<li><a href=/{n}>The ferry number {n}</a></li>" for n in range(5))
    assert "The ferry number 3" in main_text(page(f"<html><body><ul>{links}</ul></body></html>")).text()


@pytest.mark.parametrize(
    ("raw", "fields"),
    [
        ("<p>Зажигалка" .encode("windows-1251"), {"charset": "windows-1251"}),
        ("<meta charset=windows-1251><p>Зажигалка".encode("windows-1251"), {}),
        ("<p>Зажигалка".encode(), {}),
    ],
)  # fmt: skip
def test_charsets(raw: bytes, fields: dict[str, str]) -> None:
    assert "Зажигалка" in main_text(page(raw, **fields)).text()


def test_hostile_markup_costs_only_its_page() -> None:
    step = main_text(timeout_s=1)
    for raw in ("<div>" * 5000 + "x", "<table><tr><td>" * 50, "\0\x01<p>" + "&#0;" * 100, "<p " + "a=b " * 5000):
        with suppress(BadDocument):
            step(page(raw))
    step = main_text()
    assert "first paragraph" in step(page()).text()


def test_a_page_that_takes_too_long() -> None:
    with pytest.raises(BadDocument, match=r"takes more than timeout_s=0\.001"):
        main_text(timeout_s=0.001)(page())
    assert "first paragraph" in main_text()(page()).text(), "another child was started"


def test_a_page_that_takes_too_much_memory() -> None:
    large = "<p>" + "ferry and river " * 100_000
    with pytest.raises(BadDocument, match="it ended the process"):
        main_text(memory_bytes=4 << 20)(page(large))


@pytest.mark.slow
def test_a_page_of_10_mb() -> None:
    paragraphs = "".join(f"<p>Ferry number {n} crosses the river on a rope of hemp.</p>" for n in range(160_000))
    text = main_text()(page(f"<html><body><article>{paragraphs}</article></body></html>")).text()
    assert text.count("crosses the river") == 160_000


def test_a_child_that_is_killed() -> None:
    child = MainTextProcess(1 << 30)
    request = PageRequest(PAGE, "", True, False)
    child.ask(request, 60)
    os.kill(child.pid, 9)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert "first paragraph" in child.ask(request, 60).text
    child.end()


def test_a_child_that_cannot_be_started_is_no_fault_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is unavailable: the page waits, and the next request finds a child."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    child = MainTextProcess(1 << 30)
    request = PageRequest(PAGE, "", True, False)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", fail)
        with pytest.raises(Unavailable, match="no child process can be made: Resource temporarily unavailable"):
            child.ask(request, 60)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(Unavailable, match=r"steps.page_text \d+ ended at its start \(exit code 1\)"):
            child.ask(request, 60)
    assert "first paragraph" in child.ask(request, 60).text
    child.end()


@pytest.mark.parametrize("options", [{"format": "html"}, {"timeout_s": 0}, {"memory_bytes": 0}, {"url": ""}])
def test_arguments_that_cannot_be_meant(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"give|name"):
        main_text(**options)
