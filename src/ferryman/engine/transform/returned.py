"""What one call of a step returns: documents of one family, looked at as they come, and held all at once if they are
few."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Final

from ferryman import limits
from ferryman.document import Document, is_text
from ferryman.errors import Dropped, PermanentError, shown
from ferryman.records.family import descends


class Many:
    """More documents than are held at once: the first ones, and those that are still to come.

    Args:
        made: hashes of (route, id) of its children so far.
        route: by which the document came that they are made of.
    """

    def __init__(self, first: list[Document], rest: Iterator[Document], made: set[int], route: str) -> None:
        self._first = iter(first)
        self._rest = rest
        self.made = made
        self.route = route

    def next(self) -> Document | None:
        """The next one; None: there are no more. Raises whatever the step raises."""
        for source in (self._first, self._rest):
            for doc in source:
                return doc
        return None


class Returned:
    """Looks at what the steps of one family's walk return.

    A child's id stands as 64 bits of hash: as text, those of a million would take ten times the memory, and that two of
    a million have the same hash is as likely as 1 in 10⁷.

    Args:
        wish: told of each document whether a step wants it again.
    """

    def __init__(self, wish: Callable[[Document], None]) -> None:
        self._wish = wish
        self._made: list[set[int]] = [set()]
        """The last but the first: of calls that are not through yet."""
        self._above: list[set[int]] = []
        """What was made above a member that goes on by itself."""

    def beside(self, wish: Callable[[Document], None]) -> Returned:
        """Of a member that goes on by itself."""
        apart = Returned(wish)
        apart._above = [*self._above, *self._made]
        return apart

    def join(self, member: Returned) -> None:
        """It is through."""
        self._made[-1] |= member._made[0]

    def clear(self) -> None:
        """Another family's walk begins."""
        if self._made[0]:
            self._made = [set()]

    def take(self, doc: Document, where: str, route: str, out: Any) -> list[Document] | Many:
        """What a step has made of this document: at least one. (``None`` does not come here.)

        Raises:
            Dropped: none.
            PermanentError: something else than documents of this family, or one of them twice.
        """
        if isinstance(out, Document):
            out = [out]
        elif isinstance(out, (str, bytes, Mapping)) or not isinstance(out, Iterable):
            raise PermanentError(f"returned {kind_of(out)}, not the document, None, or an iterable of documents")
        made: set[int] = set()
        each = self._each(doc, route, out, made)
        found, all_ = few(each)
        if not found:
            raise Dropped(f"{where} returned no document")
        if not all_ and not (isinstance(out, Sized) and len(out) == len(found)):
            return Many(found, each, made, route)
        self._made[-1] |= made
        return found

    def begin(self, many: Many) -> None:
        """Its documents go on while it still makes others."""
        self._made.append(many.made)

    def end(self, *, failed: bool) -> None:
        """The last that was begun is through; if it has failed, nothing of it was made."""
        made = self._made.pop()
        if not failed:
            self._made[-1] |= made

    def _each(self, doc: Document, route: str, out: Iterable[Any], made: set[int]) -> Iterator[Document]:
        id, itself = doc.id, False
        documents = iter(out)
        while True:
            try:
                each = next(documents, _END)
            finally:
                doc.id = id  # its id is the source's, whatever a step does to the object
            if each is _END:
                return
            if not isinstance(each, Document):
                raise PermanentError(f"returned a {type(each).__name__} among its documents")
            if not isinstance(each.id, str) or not is_text(each.id):
                raise PermanentError(
                    f"returned a document with the id {shown(each.id)}, which is not text that is whole"
                )
            if not descends(each.id, id):
                raise PermanentError(
                    f"returned a document of another id, {each.id!r}: make children with document.child()"
                )
            if each.id == id:
                if itself:
                    raise PermanentError("returned the document itself twice: give each child a key of its own")
                itself = True
            else:
                name = hash((route, each.id))
                if name in made or any(name in names for names in (*self._above, *self._made)):
                    raise PermanentError(
                        f"returned two children of one key, {each.id!r}: give each child a key of its own"
                    )
                made.add(name)
            self._wish(each)
            yield each


def kind_of(out: Any) -> str:
    """What a step returned, in words."""
    return "None" if out is None else f"a {type(out).__name__}"


def few(documents: Iterator[Document]) -> tuple[list[Document], bool]:
    """As many of them as are held at once; and whether these are all."""
    found, size = [], 0
    for doc in documents:
        found.append(doc)
        size += _size(doc)
        if len(found) >= limits.HELD_CHILDREN or size >= limits.GROUP_BYTES:
            return found, False
    return found, True


def _size(doc: Any) -> int:
    """Bytes of its content, about; a step may return anything."""
    if not isinstance(doc, Document):
        return 0
    return len(doc.raw or b"") + sum(len(value) for value in doc.fields.values() if isinstance(value, (str, bytes)))


_END: Final = object()
