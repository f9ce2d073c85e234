"""Resources of dlt as a source: what they yield becomes documents, and their state is committed with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import Misconfigured, UsageError, safe_repr
from ferryman.sources.base import Bookmark, Complete, Detect, Listed, Note, Source
from ferryman.sources.functions import MAX_DELETED, RowReader, check_not_empty

if TYPE_CHECKING:
    from dlt.extract import DltResource, DltSource

_ONE_PAGE: Final = 100
"""Rows of a page of many APIs: a resource that has just so many may have read its first page only."""

STATE_CHARACTERS: Final = limits.BOOKMARK_BYTES // 2
"""Largest state, as JSON: in a bookmark it is text, whose quotes are escaped."""

_SNAPSHOTS: Final = ("scd2", "cdc")
"""Strategies of "merge" whose resources yield everything each time."""


_Columns = Mapping[str, Mapping[str, Any]]
"""Name of a column -> dlt's hints about it."""


_ROWS: Final = "rows"
"""Key of a bookmark: number of rows of a resource that lists everything."""


class Dlt(Source):
    """Rows of dlt's resources: ``Dlt(github_issues, id="number")``, for the sources that are written for dlt.

    ``factory()`` returns a source or a resource of dlt (``pip install 'ferryman[dlt]'``). It is called in the driver
    and in the workers, since few resources can be sent there. Each resource is read by itself; of several, ids begin
    with the resource's name, as in ``issues/7``. dlt loads nothing: there is no pipeline, and no file of its own.

    **What is deleted.** A resource with the write disposition "replace" (or the strategy "scd2") and without
    ``incremental`` lists everything: what it does not yield any more is deleted. All others yield changes, so only a
    row deletes whose column with the hint ``hard_delete`` says so. Waiting and failed rows are kept in the state, since
    a resource cannot be asked for them again.

    **State.** The resource's state, which ``incremental`` uses, is committed with the rows that it stands for. With
    ``row_order="asc"`` it is committed up to the last whole page, also if reading fails or is killed; that of any other
    resource when it has been read to its end. Rows that come again and have not changed are dropped. A resource that
    lists everything by "replace" begins without a state each time, as with dlt.

    Args:
        factory: function without arguments; credentials come from the environment or dlt's configuration, which every
            machine must have.
        id: name of the field with the id, or names, whose values are joined with ``/``. None: the primary key that the
            resource declares.
        may_be_empty: whether no rows at all of a resource that lists everything are normal, and delete every document.
        prefix, detect, max_deleted: see ``Source``.

    Raises:
        UsageError: when it is made: an argument that cannot be meant.
    """

    lists_all = False
    keeps_content = True
    may_not_see_deletes = True
    comes_again = "A resource of dlt is not asked again for what it has yielded: it comes again when it changes."

    def __init__(
        self,
        factory: Callable[[], Any],
        *,
        id: str | Sequence[str] | None = None,
        may_be_empty: bool = False,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float = MAX_DELETED,
    ) -> None:
        super().__init__(prefix=prefix, detect=detect, max_deleted=max_deleted)
        if not callable(factory) or hasattr(factory, "write_disposition"):
            raise UsageError(f"Dlt({safe_repr(factory)}): give a function that returns the source: Dlt(lambda: …).")
        self._factory = factory
        self.id = (id,) if isinstance(id, str) else None if id is None else tuple(id)
        self.may_be_empty = may_be_empty

    def __repr__(self) -> str:
        return f"Dlt({getattr(self._factory, '__name__', '…')})"

    def unseen_deletes(self, bookmarks: Mapping[str, Any]) -> str:
        changes = [name for name, bookmark in bookmarks.items() if _ROWS not in bookmark]
        if not changes:
            return ""
        yields = "yields" if len(changes) == 1 else "yield"
        return f"{', '.join(changes)} {yields} changes only: a row deletes by the hint hard_delete."

    def partitions_after(self, bookmarks: Mapping[str, Any]) -> list[Any]:
        names = list(self._source().resources.selected)
        if not names:
            raise UsageError(f"{self!r}: none of its resources is selected.")
        return [(name, len(names) > 1, bookmarks.get(name)) for name in names]

    def listing(self, partition: tuple[str, bool, Any]) -> Iterator[Listed | Document | Bookmark | Complete | Note]:
        name, of_several, known = partition
        source = self._source().with_resources(name)
        resource = source.resources[name]
        columns = resource.compute_table_schema()["columns"]
        reader = _ResourceReader(columns, self._key_of(name, columns), name if of_several else "")
        before = known or {}
        pages = _Pages(source, resource, before.get("state"))
        rows = RowReader("id")
        try:
            for page in pages:
                yield from rows.documents(reader.rows(page))
                pages.end_page()
        except Exception:
            if pages.committed is not None:
                yield Bookmark(name, {**before, "state": pages.committed})
            raise
        rows.raise_if_unnamed()
        bookmark: dict[str, Any] = {"state": pages.state()}
        lists_all = _lists_all(resource)
        if lists_all:
            check_not_empty(rows.count, before.get(_ROWS), name, may_be_empty=self.may_be_empty)
            bookmark[_ROWS] = rows.count
        if pages.count == 1 and rows.count == _ONE_PAGE:
            yield Note(
                f"the resource {name} has yielded one page of {_ONE_PAGE} rows. If there are more, give it a paginator"
            )
        yield Bookmark(name, bookmark)
        if lists_all:
            yield Complete(f"{name}/") if of_several else Complete()

    def _source(self) -> DltSource:
        os.environ.setdefault("RUNTIME__DLTHUB_TELEMETRY", "false")  # dlt's own, which nobody has asked for here
        try:
            from dlt.common.schema import Schema
            from dlt.extract import DltResource, DltSource
        except ImportError as e:
            raise Misconfigured(f"Dlt needs the extra [dlt]: pip install 'ferryman[dlt]' ({e}).") from e
        made = self._factory()
        if isinstance(made, DltResource):
            made = DltSource(Schema(made.source_name or made.name), made.section or made.name, [made])
        if not isinstance(made, DltSource):
            what = safe_repr(made)
            raise Misconfigured(f"{self!r}: its function returns {what}: return a source or a resource of dlt.")
        return made

    def _key_of(self, resource: str, columns: _Columns) -> tuple[str, ...]:
        if self.id is not None:
            return self.id
        key = tuple(name for name, hints in columns.items() if hints.get("primary_key"))
        if not key:
            raise Misconfigured(f"{self!r}: the resource {resource} declares no primary key: say id=.")
        return key


class _ResourceReader:
    """Makes rows with an id of what a resource yields."""

    def __init__(self, columns: _Columns, key: tuple[str, ...], prefix: str) -> None:
        self._key = key
        self._prefix = f"{prefix}/" if prefix else ""
        self._marks = tuple(name for name, hints in columns.items() if hints.get("hard_delete"))

    def rows(self, page: Any) -> Iterator[Document | dict[str, Any]]:
        for row in _rows_of(page):
            parts = [row.get(name) for name in self._key]
            if any(part is None or part == "" for part in parts):
                yield {**row, "id": None}  # is counted, and named
                continue
            texts = [str(part) for part in parts]
            id = self._prefix + (texts[0] if len(texts) == 1 else "/".join(quote(text, safe="") for text in texts))
            if any(row.get(mark) not in (None, False) for mark in self._marks):
                yield Document.deleted(id)
            else:
                yield Document.of(id, {str(name): value for name, value in row.items() if name not in self._marks})


class _Pages:
    """Pages of a resource, each an item that it yields, with its state after them.

    Attributes:
        count: number of pages so far.
        committed: state after the last page that was read to its end; None: it is known at the end only.
    """

    def __init__(self, source: DltSource, resource: DltResource, state: str | None) -> None:
        from dlt.common.json import json

        self._json = json
        self._source, self._resource = source, resource
        self._state: dict[str, Any] = {} if state is None else json.typed_loads(state)
        self.count = 0
        self.committed: str | None = None

    def __iter__(self) -> Iterator[Any]:
        """Iterate as ``DltSource.__iter__`` does, which loses where a page ends."""
        from dlt.common.configuration.container import Container
        from dlt.common.configuration.resolve import inject_section
        from dlt.common.pipeline import StateInjectableContext
        from dlt.extract.pipe_iterator import ManagedPipeIterator
        from dlt.extract.source import SourceInjectableContext, SourceSchemaInjectableContext
        from dlt.extract.state import reset_resource_state

        section = self._source._get_config_section_context()
        contexts = [
            StateInjectableContext(state=self._state),  # type: ignore[arg-type]
            SourceSchemaInjectableContext(self._source.schema),
            SourceInjectableContext(self._source),
        ]
        with ExitStack() as stack:
            stack.enter_context(inject_section(section))
            for context in contexts:
                stack.enter_context(Container().injectable_context(context))
            for resource in self._source.resources.extracted:
                if _replaces(resource):  # what it has noted would keep it from yielding everything
                    reset_resource_state(resource.name)
            items = ManagedPipeIterator.from_pipes(self._source.resources.selected_pipes)
        items.set_context([section, *contexts])  # type: ignore[attr-defined]  # dlt casts it as we do
        try:
            for item in items:
                self.count += 1
                yield item.item
        finally:
            items.close()

    def end_page(self) -> None:
        """Note that all rows of the page were taken. Before them the state counts them already."""
        if _is_ascending(self._resource):
            self.committed = self.state()

    def state(self) -> str:
        """Return the state as JSON.

        Raises:
            Misconfigured: it is too large, or holds what JSON cannot.
        """
        try:
            text = str(self._json.typed_dumps(self._state))
        except TypeError as e:
            raise Misconfigured(f"the state of the resource {self._resource.name} cannot be kept: {e}") from e
        if len(text) > STATE_CHARACTERS:
            part, size = _largest_part(self._json, self._state)
            raise Misconfigured(
                f"the state of the resource {self._resource.name} has grown to "
                f"{limits.format_count(len(text))} bytes, {limits.format_count(size)} of them "
                f"in {part}: limit what it keeps there. Of an incremental, give it a primary key, or a finer cursor."
            )
        return text


def _largest_part(json: Any, state: Mapping[str, Any]) -> tuple[str, int]:
    """Return the path of what takes most of a state, and its bytes."""
    path: list[str] = []
    size = 0
    while isinstance(state, Mapping) and state:
        sizes = {name: len(json.typed_dumps(value)) for name, value in state.items()}
        name = max(sizes, key=lambda each: sizes[each])
        if path and sizes[name] < size // 2:
            break
        path.append(str(name))
        size = sizes[name]
        state = state[name]
    return ".".join(path), size


def _lists_all(resource: DltResource) -> bool:
    given = resource.write_disposition
    strategy = given.get("strategy") if isinstance(given, Mapping) else None
    return _replaces(resource) or (strategy in _SNAPSHOTS and resource.incremental is None)


def _replaces(resource: DltResource) -> bool:
    """Return whether what it yields takes the place of all that it has yielded before."""
    given = resource.write_disposition
    disposition = given.get("disposition") if isinstance(given, Mapping) else given
    return disposition == "replace" and resource.incremental is None


def _is_ascending(resource: DltResource) -> bool:
    """Return whether its state says at each page what was read: rows come by their cursor, one page after the other."""
    wrapper = resource.incremental
    incremental = getattr(wrapper, "incremental", wrapper)
    ordered = getattr(incremental, "row_order", None) == "asc"
    return ordered and not resource.is_transformer and not _is_parallel(resource)


def _is_parallel(resource: DltResource) -> bool:
    function: Any = resource._pipe.gen
    while function is not None:
        if getattr(getattr(function, "__code__", None), "co_name", "") == "_gen_wrapper":
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _rows_of(page: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a page: a dict, a list of them, an Arrow table or batch, or a DataFrame."""
    page = getattr(page, "data", page) if type(page).__name__ == "DataItemWithMeta" else page
    if isinstance(page, Mapping):
        yield dict(page)
    elif isinstance(page, list | tuple):
        for each in page:
            yield from _rows_of(each)
    elif hasattr(page, "to_pylist"):
        yield from page.to_pylist()
    elif hasattr(page, "to_dict"):
        yield from page.to_dict("records")
    else:
        raise Misconfigured(f"a resource yields {safe_repr(page)}: yield rows, or tables of rows")
