"""The step that computes a vector of a text, by a model that comes in a package or by a function of one's own."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, overload

from ferryman import limits
from ferryman.document import Document, is_text
from ferryman.errors import BadDocument, PermanentError, UsageError
from ferryman.steps.fields import StepWithDefaults, bad_field, field_name, field_values

Role = Literal["document", "query"]
"""Role of a text: models often embed what is searched and what is asked in different ways."""

Model = Callable[[list[str], Role], Iterable[Sequence[float]]]
"""Function: (texts, role of all of them) -> a vector for each text, in their order."""

MODELS: Final = {"wordllama": (256, 128, 64)}
"""Model -> its dimensions, the default first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class embed_text(StepWithDefaults):
    r"""Set a field to a vector of the document's text, by which it is found by meaning.

    The text is the document's ``raw``, as UTF-8 (``extract_text`` and ``split_text`` leave it so), or the field that
    ``field`` names. A document without it is left unchanged. The vector is a list of floats of length 1, so that a
    higher cosine, a higher inner product and a smaller Euclidean distance mean the same. Equal texts have equal
    vectors, in whatever batch they come.

    >>> embed_text(dimensions=64)(Document("a", raw=b"O for a Muse of fire"))["vector"][:2]
    [0.0106457, -0.0400424]

    The model "wordllama" comes in its package, runs without network and graphics card, and needs some 60 µs a text of a
    line: ``pip install 'ferryman[embed]'``. It knows words, not their order. Any other model is a function of yours,
    which gets texts and their role, and returns a vector for each::

        def encode(texts, role):
            model = load_model()  # SentenceTransformer("intfloat/e5-base-v2"), under functools.cache
            return model.encode([f"{'passage' if role == 'document' else role}: {text}" for text in texts])

    Say ``batch=`` to give it many texts at once: ``plan.step("embed", embed_text(model=encode), batch=64)``. Its errors
    are those of all documents in the call, which are then tried in smaller batches.

    ``ferryman search … --plan plan.py --embed embed`` has this step embed a question, with the role "query".

    Args:
        into: name of the field that gets the vector.
        field: holds the text, or a list of texts, which are joined by line ends; "": it is ``raw``.
        context: fields whose text is put before a document's, each on lines of its own, such as "title" and "headings":
            a passage that stands alone rarely names its subject.
        model: "wordllama", or a function as above.
        dimensions: length of a vector; None: the model's own. "wordllama" can make 256, 128 and 64.
        max_characters: longest text, with its context. A vector of much more says little about any of it.

    Raises:
        BadDocument: the text is empty, too long, or not UTF-8; the field holds something else.
        PermanentError: the function returned another number of vectors than it got texts, or one with NaN, with zeros
            only, or of another length than ``dimensions``.
        ValueError: when the step is made: an unknown model, or dimensions that it does not have.
        UsageError: when the step is made: the model's package is not installed.
    """

    TIMEOUT_S: ClassVar[float] = limits.STEP_TIMEOUT_S

    into: str = "vector"
    field: str = ""
    context: str | Sequence[str] = ()
    model: str | Model = "wordllama"
    dimensions: int | None = None
    max_characters: int = limits.EMBED_CHARACTERS

    def __post_init__(self) -> None:
        field_name(self.into, "into")
        object.__setattr__(self, "context", (self.context,) if isinstance(self.context, str) else tuple(self.context))
        for name in self.context:
            field_name(name, "context")
        if self.max_characters < 1:
            raise ValueError(f"max_characters={self.max_characters!r}: give 1 or more.")
        if callable(self.model):
            if self.dimensions is not None and self.dimensions < 1:
                raise ValueError(f"dimensions={self.dimensions!r}: give 1 or more, or leave it out.")
            return
        if self.model not in MODELS:
            raise ValueError(
                f"model={self.model!r}: give {' or '.join(map(repr, MODELS))}, or a function of (texts, role) that "
                "returns a vector for each text."
            )
        if self.dimensions is None:
            object.__setattr__(self, "dimensions", MODELS[self.model][0])
        if self.dimensions not in MODELS[self.model]:
            options = ", ".join(map(str, MODELS[self.model]))
            raise ValueError(f"dimensions={self.dimensions!r}: the model {self.model} has one of {options}.")
        if find_spec("wordllama") is None:
            raise UsageError("embed_text needs wordllama: pip install 'ferryman[embed]'.")

    @overload
    def __call__(self, docs: Document) -> Document: ...
    @overload
    def __call__(self, docs: list[Document]) -> list[Document | Exception]: ...
    def __call__(self, docs: Document | list[Document]) -> Any:
        """Embed a document, or a list of them; of a list, an answer may be the document's error."""
        return self._embed(docs, self._text_of, "document")

    def for_question(self, docs: Document | list[Document]) -> Any:
        """Embed a question, which is the document's ``raw``: without context, and with the role "query"."""
        return self._embed(docs, Document.text, "query")

    def _embed(self, docs: Document | list[Document], text_of: Callable[[Document], str | None], role: Role) -> Any:
        if not isinstance(docs, Document):
            return self._embed_all(docs, text_of, role)
        [answer] = self._embed_all([docs], text_of, role)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _embed_all(
        self, docs: list[Document], text_of: Callable[[Document], str | None], role: Role
    ) -> list[Document | Exception]:
        answers: list[Document | Exception] = list(docs)
        texts: dict[int, str] = {}
        for place, doc in enumerate(docs):
            try:
                if (text := text_of(doc)) is not None:
                    texts[place] = self._check_text(doc, text)
            except BadDocument as e:
                answers[place] = e
        if not texts:
            return answers
        model = self.model if callable(self.model) else _package_model(self.model, self.dimensions or 0)
        vectors = list(model(list(texts.values()), role))
        if len(vectors) != len(texts):
            raise PermanentError(
                f"the model returned {len(vectors)} vectors for {len(texts)} texts, and so it cannot be known which "
                "belongs to which: return one for each, in their order."
            )
        for place, vector in zip(texts, vectors, strict=True):
            try:
                docs[place][self.into] = self._normalize(docs[place], vector)
            except PermanentError as e:
                answers[place] = e
        return answers

    def _text_of(self, doc: Document) -> str | None:
        """Return the text to embed; None: the document has none."""
        if not self.field and doc.raw is None:
            return None
        texts = field_values(doc, self.field) if self.field else [doc.text()]
        if texts is None:
            return None
        if not any(text.strip() for text in texts):
            return ""
        context = [text for name in self.context for text in field_values(doc, name) or () if text.strip()]
        return "\n".join([*context, *texts])

    def _check_text(self, doc: Document, text: str) -> str:
        if not text.strip():
            why = "no text, and so it has no vector. Drop such documents in a step before: drop_if(…, 'no text')."
            raise bad_field(doc, self.field, f"holds {why}") if self.field else BadDocument(f"{doc.id}: it has {why}")
        if len(text) > self.max_characters:
            why = (
                f"{limits.format_count(len(text))} characters, and one vector is made of "
                f"{limits.format_count(self.max_characters)} at most. Split it in a "
                "step before: split_text(by='tokens')."
            )
            raise bad_field(doc, self.field, f"holds {why}") if self.field else BadDocument(f"{doc.id}: it has {why}")
        if not is_text(text):
            raise BadDocument(f"{doc.id}: its text has half a character in it (a lone surrogate). Replace it before.")
        return text

    def _normalize(self, doc: Document, vector: Sequence[float]) -> list[float]:
        """Return the vector with length 1.

        Raises:
            PermanentError: it is not a vector of the right length, or has no direction.
        """
        import numpy as np

        try:
            numbers = np.asarray(vector, dtype=np.float64)
        except (TypeError, ValueError):
            numbers = np.empty((0, 0))
        if numbers.ndim != 1:
            raise PermanentError(
                f"{doc.id}: the model returned a {type(vector).__name__} that is not a list of numbers."
            )
        if self.dimensions is not None and len(numbers) != self.dimensions:
            raise PermanentError(
                f"{doc.id}: the model returned {len(numbers)} numbers, and dimensions={self.dimensions}. Correct one."
            )
        length = math.sqrt(np.square(numbers).sum())
        if not 0 < length < math.inf:
            what = "zeros only" if length == 0 else "NaN or an infinite number in it"
            raise PermanentError(f"{doc.id}: the model returned a vector with {what}.")
        # seven digits are what float32 has, in which stores keep vectors; more only take room
        rounded: list[float] = np.round(numbers / length, 7).tolist()
        return rounded


@lru_cache(maxsize=4)
def _package_model(name: str, dimensions: int) -> Model:
    """Return the function of a model that a package brings; it is loaded once a process."""
    assert name == "wordllama"
    # its tokenizer would start threads in each worker, and warns after each fork
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    root, guard = logging.getLogger(), logging.NullHandler()
    root.addHandler(guard)  # the import calls logging.basicConfig, which does nothing if there is a handler
    try:
        import wordllama
    finally:
        root.removeHandler(guard)
    # By default it looks for the tokenizer in a folder that its package does not have, then downloads it.
    folder = Path(wordllama.__file__).parent
    loaded = wordllama.WordLlama.load(cache_dir=folder, trunc_dim=dimensions, disable_download=True)
    loaded.tokenizer.no_padding()

    def embed(texts: list[str], role: Role) -> Iterable[Sequence[float]]:
        """Return the mean of the vectors of each text's tokens. The package's own ``embed`` fills up all texts of a
        batch to the longest, so that the last digits depend on the batch."""
        for tokens in loaded.tokenizer.encode_batch(texts, add_special_tokens=False):
            yield loaded.embedding[tokens.ids].mean(axis=0)

    return embed
