"""The step that splits a text into documents of its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from importlib.util import find_spec
from typing import Any, ClassVar, Final, Literal, NamedTuple

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import Dropped, UsageError
from ferryman.steps.values import Plain

By = Literal["paragraphs", "sentences", "characters", "tokens", "headings"]

_NEEDED: Final = {"sentences": "sentencex", "characters": "semantic_text_splitter", "tokens": "semantic_text_splitter"}
_GAP: Final = re.compile(r"\n[^\S\n]*(?:\n[^\S\n]*)+")
_KEY_BYTES: Final = 16


class _Part(NamedTuple):
    """A part of a text, and the headings it stands under."""

    text: str
    headings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class split_text(Plain):
    r"""Make children of the parts of a text: paragraphs, sentences, Markdown sections, or pieces of a size.

    The text is the document's ``raw``, as UTF-8 (``extract_text`` leaves it so). Each child has a part as its ``raw``,
    and the fields that ``copy`` names. The document itself goes no further, unless ``keep`` says so; one without
    ``raw`` goes on as it is, and one without text is DROPPED.

    >>> doc = Document("a.txt", raw=b"One. Two.\n\nThree.", title="Count")
    >>> [(c.id, c.raw, c["title"]) for c in split_text(copy="title")(doc)]
    [('a.txt#0', b'One. Two.', 'Count'), ('a.txt#1', b'Three.', 'Count')]

    By default a child's key is its number: what is inserted in the middle gives a new content to each child that
    follows. With ``key="content"`` it is a hash of the part's text, for parts that are equal with ``-2``, ``-3`` and so
    on: then an insertion changes no other child's id, and a child that was not changed is not sent again. Pieces of a
    size, and windows of several units, begin elsewhere after an insertion; by paragraphs, sentences or headings, one
    each, they do not.

    ``Plan.step("split", split_text)`` is ``split_text()``. Sentences, characters and tokens need
    ``pip install 'ferryman[split]'``; nothing is loaded from the web.

    Args:
        by: "paragraphs" (apart by blank lines), "sentences", "headings" (sections of Markdown), or pieces of as many
            "characters" or "tokens" as fit into ``size``, cut at the best place: between paragraphs, sentences, words.
        size: how many of these one part has; None: 1000 characters, 256 tokens, else 1.
        overlap: how many of these a part repeats of the one before it.
        key: "number" or "content".
        copy: fields that each child gets of the document.
        heading: name of the field, by "headings", with the section's headings, outermost first; "": none.
        number: name of a field with the part's number, from 0; "": none. With it an insertion changes what follows.
        language: ISO 639-1 code for "sentences"; "": the document's field ``language``, else English.
        model: whose "tokens" are counted: a model of OpenAI, as tiktoken names them.
        keep: the document itself goes on, too.

    Raises:
        BadDocument: ``raw`` is not UTF-8.
        ValueError: when the step is made: a size below 1, an overlap that is not below it, another word for ``by`` or
            ``key``, or a model that is not known.
        UsageError: when the step is made: a library is not installed.
    """

    TIMEOUT_S: ClassVar[float] = limits.STEP_TIMEOUT_S

    by: By = "paragraphs"
    size: int | None = None
    overlap: int = 0
    key: Literal["number", "content"] = "number"
    copy: str | Sequence[str] = ()
    heading: str = "headings"
    number: str = ""
    language: str = ""
    model: str = "gpt-4o"
    keep: bool = False

    def __post_init__(self) -> None:
        if self.by not in limits.SPLIT_SIZE:
            raise ValueError(f"by={self.by!r}: give one of {', '.join(limits.SPLIT_SIZE)}.")
        if self.key not in ("number", "content"):
            raise ValueError(f"key={self.key!r}: give 'number' or 'content'.")
        if self.size is None:
            object.__setattr__(self, "size", limits.SPLIT_SIZE[self.by])
        if not isinstance(self.size, int) or self.size < 1 or not 0 <= self.overlap < self.size:
            raise ValueError(f"size={self.size!r}, overlap={self.overlap!r}: give a size from 1 on, and less overlap.")
        if self.by == "headings" and self.size != 1:
            raise ValueError(
                "by='headings' makes one section a part: leave size out, or split the sections by another."
            )
        object.__setattr__(self, "copy", (self.copy,) if isinstance(self.copy, str) else tuple(self.copy))
        needed = _NEEDED.get(self.by)
        if needed and find_spec(needed) is None:
            raise UsageError(f"split_text by {self.by} needs {needed}: pip install 'ferryman[split]'.")
        if self.by == "tokens":
            _token_splitter(self.model, self.size, self.overlap)

    def __call__(self, doc: Document) -> Document | list[Document]:
        if doc.raw is None:
            return doc
        parts = list(self._parts(doc, doc.text()))
        if not parts and not self.keep:
            raise Dropped("no text to split")
        keys = self._keys(parts)
        children = [self._child(doc, n, part, key) for n, (part, key) in enumerate(zip(parts, keys, strict=True))]
        return [doc, *children] if self.keep else children

    def _child(self, doc: Document, number: int, part: _Part, key: str | None) -> Document:
        child = doc.child(key, raw=part.text.encode(), **{name: doc[name] for name in self.copy if name in doc})
        if self.by == "headings" and self.heading and part.headings:
            child[self.heading] = list(part.headings)
        if self.number:
            child[self.number] = number
        child.only_if_changed = self.key == "content"
        return child

    def _keys(self, parts: Sequence[_Part]) -> Iterator[str | None]:
        seen: Counter[str] = Counter()
        for part in parts:
            if self.key == "number":
                yield None
                continue
            digest = blake2b(part.text.encode(), digest_size=_KEY_BYTES).hexdigest()
            seen[digest] += 1
            yield digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"

    def _parts(self, doc: Document, text: str) -> Iterator[_Part]:
        match self.by:
            case "headings":
                yield from _sections(text)
            case "paragraphs":
                units = [unit.strip("\n") for unit in _GAP.split(text.strip("\n")) if unit.strip()]
                yield from self._windows(units, "\n\n")
            case "sentences":
                yield from self._windows(_sentences(self._language_of(doc), text), " ")
            case _:
                splitter = self._splitter()
                yield from (_Part(piece) for piece in splitter.chunks(text) if piece.strip())

    def _windows(self, units: list[str], between: str) -> Iterator[_Part]:
        """``size`` units a part, each beginning ``overlap`` units before the end of the last."""
        assert self.size is not None
        for at in range(0, max(len(units) - self.overlap, min(len(units), 1)), self.size - self.overlap):
            yield _Part(between.join(units[at : at + self.size]))

    def _language_of(self, doc: Document) -> str:
        found = self.language or doc.get("language") or "en"
        return found if isinstance(found, str) else "en"

    def _splitter(self) -> Any:
        assert self.size is not None
        if self.by == "tokens":
            return _token_splitter(self.model, self.size, self.overlap)
        return _character_splitter(self.size, self.overlap)


@lru_cache(maxsize=8)
def _token_splitter(model: str, size: int, overlap: int) -> Any:
    """It has the model's vocabulary with it.

    Raises:
        ValueError: a model that it does not know.
    """
    from semantic_text_splitter import TextSplitter

    try:
        return TextSplitter.from_tiktoken_model(model, size, overlap=overlap)
    except Exception as e:
        raise ValueError(f"model={model!r}: {e}. Give one of OpenAI's, such as 'gpt-4o'.") from None


@lru_cache(maxsize=8)
def _character_splitter(size: int, overlap: int) -> Any:
    from semantic_text_splitter import TextSplitter

    return TextSplitter(size, overlap=overlap)


def _sentences(language: str, text: str) -> list[str]:
    from sentencex import segment

    return [" ".join(sentence.split()) for sentence in segment(language, text) if sentence.strip()]


def _sections(text: str) -> Iterator[_Part]:
    """Sections of Markdown: each begins at a heading, which is its first line. What is in code is not a heading."""
    from markdown_it import MarkdownIt

    lines = text.splitlines(keepends=True)
    tokens = MarkdownIt("commonmark").parse(text)
    starts: list[tuple[int, int, str]] = []
    """(line, level, words) of each heading."""
    for at, token in enumerate(tokens):
        if token.type == "heading_open" and token.map and token.level == 0:
            starts.append((token.map[0], int(token.tag[1:]), tokens[at + 1].content))
    ends = [line for line, _, _ in starts][1:] + [len(lines)] * bool(starts)
    if before := "".join(lines[: starts[0][0] if starts else None]).strip():
        yield _Part(before)
    above: list[tuple[int, str]] = []
    for (line, level, words), end in zip(starts, ends, strict=True):
        above = [(outer, title) for outer, title in above if outer < level] + [(level, words)]
        yield _Part("".join(lines[line:end]).strip(), tuple(title for _, title in above))
