"""The step that finds the text of a web page without its navigation.

The library works in a child process (``python -m ferryman.steps.page_text``), which has a limit of memory and is ended
when its time is up: a page is written by anybody, and what it costs to find its text is not known before. The engine's
own children serve its tasks and are above this layer; this one reads a page from its standard input and answers on its
standard output.
"""

from __future__ import annotations

import os
import re
import resource
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import IO, Any, ClassVar, Final, Literal

import msgspec

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import BadDocument, Unavailable, UsageError
from ferryman.steps.fields import StepWithDefaults, field_name
from ferryman.steps.formats import HTML, clean, kind_of, one_line
from ferryman.steps.formats.charsets import decode
from ferryman.steps.formats.markup import declared_inside, html
from ferryman.steps.formats.plain import find_headings, split_lines

Format = Literal["markdown", "text"]

_LIBRARIES: Final = ("charset_normalizer", "lxml", "markdown_it", "trafilatura", "webencodings")
_TRIES: Final = 2
"""Times that a page may end the child, since a machine may be slow for a while."""

_SIZE: Final = struct.Struct("<Q")
_START_S: Final = 60.0
"""Seconds that a child may take to load the library."""

_POINTS_TO_ITSELF: Final = frozenset({"", "¶", "#", "§", "🔗", "link", "permalink"})
"""Texts of links in a heading that lead to the heading itself."""

_LETTERS: Final = re.compile(r"[\W_]+")
_CELL_END: Final = re.compile(r" \| ?$", re.MULTILINE)
_LARGE_CHARACTERS: Final = 2_000_000
"""Characters of a page from which on its main text is not looked for: the time grows faster than the page, to minutes
for 10 million."""

_SEEN_FIELDS: Final = frozenset({"title", "author", "created", "language"})


class PageRequest(msgspec.Struct, array_like=True):
    """Request to find the main text of a page."""

    html: str
    url: str
    markdown: bool
    comments: bool


class PageText(msgspec.Struct, array_like=True):
    """Text of a page; ``outline`` has level, line and anchor of its headings."""

    text: str = ""
    fields: dict[str, str] = {}
    outline: list[tuple[int, str, str]] = []
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class main_text(StepWithDefaults):
    """Find the main text of a web page: without navigation, header and footer, with headings, lists, tables and code.

    The text, as UTF-8, takes the place of the document's ``raw``, as Markdown or plain text. Fields are set where the
    document does not have them yet, and only those that are known: ``title``, ``author``, ``created`` (ISO 8601),
    ``description``, ``language`` (as the page states it), and ``content_type``.

    The places of its headings are kept: ``split_text(by="headings")`` then gives each section the ``anchor`` by which a
    link leads to it.

    A document that is not a page of HTML is given to ``others``: ``main_text(others=extract_text())`` reads PDF and
    Office files of the same site. One without ``raw`` goes on as it is. A page without a main text, such as a list of
    links, keeps all that can be seen of it; so does one of more than 2 million characters.

    Needs ``pip install 'ferryman[web]'``. Nothing is loaded from the web.

    Args:
        format: "markdown" or "text".
        comments: whether what readers have written below an article belongs to it.
        url: name of the field with the page's address.
        others: step for documents that are not pages; None: they go on as they are.
        timeout_s: longest time for a page (seconds).
        memory_bytes: memory that finding the text of a page may take.
        max_bytes: largest page.

    Raises:
        BadDocument: the page takes more time or memory than it may have, or is larger than allowed.
        Unavailable: the child process cannot be started.
        UsageError: when the step is made: a library is not installed.
        ValueError: when the step is made: a limit that is not above 0, or another word for ``format``.
    """

    TIMEOUT_S: ClassVar[float] = limits.STEP_TIMEOUT_S

    format: Format = "markdown"
    comments: bool = False
    url: str = "url"
    others: Callable[[Document], Any] | None = None
    timeout_s: float = limits.MAIN_TEXT_TIMEOUT_S
    memory_bytes: int = limits.MAIN_TEXT_MEMORY_BYTES
    max_bytes: int = limits.SITE_PAGE_BYTES

    def __post_init__(self) -> None:
        field_name(self.url, "url")
        if self.format not in ("markdown", "text"):
            raise ValueError(f"format={self.format!r}: give 'markdown' or 'text'.")
        if not self.timeout_s > 0 or not self.memory_bytes > 0 or not self.max_bytes > 0:
            raise ValueError("give a timeout_s, memory_bytes and max_bytes above 0.")
        if missing := [name for name in _LIBRARIES if find_spec(name) is None]:
            raise UsageError(f"main_text needs {', '.join(missing)}, not installed here: pip install 'ferryman[web]'.")

    def __call__(self, doc: Document) -> Any:
        if doc.raw is None:
            return doc
        if not _is_page(doc):
            return doc if self.others is None else self.others(doc)
        if len(doc.raw) > self.max_bytes:
            raise BadDocument(
                f"{doc.id}: has {len(doc.raw)} bytes, more than max_bytes={self.max_bytes}. "
                "Raise the limit, or leave it out."
            )
        declared = doc.get("charset")
        decoded = decode(doc.raw, declared if isinstance(declared, str) else "", declared_inside(doc.raw))
        url = doc.get(self.url)
        request = PageRequest(
            decoded.text, url if isinstance(url, str) else "", self.format == "markdown", self.comments
        )
        answer = self._ask(doc, request)
        if answer.error:
            raise BadDocument(f"{doc.id}: its main text cannot be found: {answer.error}.")
        doc.raw = answer.text.encode()
        doc.outline = tuple(answer.outline)
        kind = "text/markdown" if self.format == "markdown" else "text/plain"
        for name, value in {**answer.fields, "content_type": kind}.items():
            if doc.get(name) is None:
                doc[name] = value
        return doc

    def _ask(self, doc: Document, request: PageRequest) -> PageText:
        child = _child(os.getpid(), self.memory_bytes)
        why = ""
        for _ in range(_TRIES):
            try:
                return child.ask(request, self.timeout_s)
            except _TookTooLong:
                why = f"it takes more than timeout_s={self.timeout_s:g}"
            except _Ended as e:
                why = f"it ended the process that looks for it ({e}), which may take memory_bytes={self.memory_bytes}"
        raise BadDocument(f"{doc.id}: its main text cannot be found: {why}. Raise the limit, or leave it out.")


def _is_page(doc: Document) -> bool:
    stated = doc.get("mime")
    if isinstance(stated, str) and stated in ("text/html", "application/xhtml+xml"):
        return True
    assert doc.raw is not None
    return kind_of(doc.raw, doc.id) == HTML


# The parent's side.


class _TookTooLong(Exception):
    """The child had no answer in time, and was ended."""


class _Ended(Exception):
    """The child ended over a request."""


class MainTextProcess:
    """A child process that answers one request at a time; it starts at the first one."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """Return the id of the child; 0: there is none."""
        return 0 if self._process is None else self._process.pid

    def ask(self, request: PageRequest, timeout_s: float) -> PageText:
        """
        Raises:
            _TookTooLong, _Ended: see there. The next request starts another child.
            Unavailable: no child can be started.
        """
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                process = self._process = self._start()
            try:
                return self._exchange(process, msgspec.msgpack.encode(request), time.monotonic() + timeout_s)
            except BaseException:
                self.end()
                raise

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ferryman.steps.page_text", str(self._memory_bytes)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )
        except OSError as e:
            raise Unavailable(f"no child process can be made: {e.strerror}") from e
        self._process = process
        try:
            self._read(process, 1, time.monotonic() + _START_S)
        except (_TookTooLong, _Ended) as e:
            why = f"did not start within {_START_S:g} s" if isinstance(e, _TookTooLong) else f"ended at its start ({e})"
            raise Unavailable(f"{' '.join(command)} {why}") from None
        return process

    def _exchange(self, process: subprocess.Popen[bytes], message: bytes, deadline: float) -> PageText:
        assert process.stdin is not None
        sender = threading.Thread(target=_send, args=(process.stdin, message), daemon=True)  # a pipe may be full
        sender.start()
        [size] = _SIZE.unpack(self._read(process, _SIZE.size, deadline))
        answer = self._read(process, size, deadline)
        sender.join()
        return msgspec.msgpack.decode(answer, type=PageText)

    def _read(self, process: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
        assert process.stdout is not None
        found = bytearray()
        while len(found) < size:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise _TookTooLong
            piece = os.read(process.stdout.fileno(), size - len(found))
            if not piece:
                code = process.wait()
                raise _Ended(f"signal {-code}" if code < 0 else f"exit code {code}")
            found += piece
        return bytes(found)


def _send(pipe: IO[bytes], message: bytes) -> None:
    try:
        pipe.write(_SIZE.pack(len(message)) + message)
        pipe.flush()
    except (OSError, ValueError):  # the child has ended, as who reads its answer finds out
        pass


@lru_cache(maxsize=4)
def _child(process: int, memory_bytes: int) -> MainTextProcess:
    """Return this process's child. A forked process must not use that of its parent."""
    return MainTextProcess(memory_bytes)


# The child's side.


def find_main_text(request: PageRequest) -> PageText:
    """Find the main text of a page, in this process."""
    import lxml.html
    import trafilatura
    from lxml import etree

    text = clean(request.html, verbatim=True)
    if not text.strip():
        return PageText()
    if len(text) > _LARGE_CHARACTERS:
        seen = html(text.encode(), "utf-8")
        return PageText(clean(seen.text), {name: str(seen.fields[name]) for name in _SEEN_FIELDS & seen.fields.keys()})
    try:
        parser = lxml.html.HTMLParser(huge_tree=True, no_network=True)
        root: Any = lxml.html.document_fromstring(re.sub(r"^\s*<\?xml[^>]*\?>", "", text), parser=parser)
    except etree.ParserError:  # nothing but comments
        return PageText()
    headings = list(_page_headings(root))
    fields = {"language": one_line(root.get("lang"))}
    options: dict[str, Any] = {"url": request.url or None, "include_comments": request.comments, "deduplicate": False}
    kind = "markdown" if request.markdown else "txt"
    whole = lxml.html.tostring(root, encoding="unicode")
    found = trafilatura.extract(root, output_format=kind, include_formatting=request.markdown, **options)
    if found is None:
        found = trafilatura.html2txt(whole)
    found = clean(_tidy(found) if request.markdown else found)
    dates = {"extensive_search": False, "original_date": True}
    known = trafilatura.extract_metadata(whole, default_url=request.url or None, date_config=dates)
    fields |= {
        "title": one_line(known.title),
        "author": one_line(known.author),
        "created": one_line(known.date),
        "description": one_line(known.description),
    }
    outline = _outline(found, headings, markdown=request.markdown)
    return PageText(found, {name: value for name, value in fields.items() if value}, list(outline))


def _page_headings(root: Any) -> Iterator[tuple[int, str, str]]:
    """Yield level, words and anchor of each heading of a page, and remove the links by which it points to itself."""
    for element in root.iter(*(f"h{level}" for level in range(1, 7))):
        anchor = element.get("id") or next(filter(None, (a.get("id") or a.get("name") for a in element.iter("a"))), "")
        for link in list(element.iter("a")):
            if (link.text_content() or "").strip().lower() in _POINTS_TO_ITSELF:
                anchor = anchor or (link.get("href") or "").partition("#")[2]
                link.drop_tree()
        above = element.getparent()
        is_first = above is not None and next(iter(above.iterchildren("*")), None) is element
        if not anchor and is_first and above.get("id") and above.tag in ("section", "div", "article", "header"):
            anchor = above.get("id")
        yield int(element.tag[1]), element.text_content(), anchor


def _tidy(markdown: str) -> str:
    """Return Markdown with a blank line after each block of code, and without blanks after tables."""
    lines: list[str] = []
    in_code = False
    for line in _CELL_END.sub(" |", markdown).split("\n"):
        if lines and lines[-1] == "```" and not in_code and line:
            lines.append("")
        in_code ^= line.startswith("```")
        lines.append(line)
    return "\n".join(lines)


def _outline(text: str, headings: Sequence[tuple[int, str, str]], *, markdown: bool) -> Iterator[tuple[int, str, str]]:
    """Yield level, line and anchor of each heading of a text, which are found by the headings of its page."""
    lines = split_lines(text)
    if markdown:
        found = [(each.level, lines[each.line].strip(), each.words) for each in find_headings(lines)]
    else:
        found = [(0, line.strip(), line) for line in lines if line.strip()]
    at = 0
    for level, line, words in found:
        key = _LETTERS.sub("", words).lower()
        place = next((n for n in range(at, len(headings)) if _LETTERS.sub("", headings[n][1]).lower() == key), None)
        if place is not None and key:
            at = place + 1
            yield level or headings[place][0], line, headings[place][2]
        elif markdown:
            yield level, line, ""


def _serve(memory_bytes: int) -> None:
    """Answer requests until the parent ends."""
    import trafilatura  # noqa: F401 - its memory does not count

    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[0])
    limit = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is not an answer
    os.write(answers, b"\0")
    stdin = sys.stdin.buffer
    while len(head := stdin.read(_SIZE.size)) == _SIZE.size:
        message = stdin.read(_SIZE.unpack(head)[0])
        try:
            answer = find_main_text(msgspec.msgpack.decode(message, type=PageRequest))
        except MemoryError:
            os._exit(1)
        except Exception as e:
            answer = PageText(error=f"{type(e).__name__}: {' '.join(str(e).split())[:200]}")
        encoded = msgspec.msgpack.encode(answer)
        with open(answers, "wb", closefd=False) as out:
            out.write(_SIZE.pack(len(encoded)) + encoded)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
