"""Conversion of Arrow batches to ids and JSON. Imported only when there are rows: pyarrow takes 0.1 s to load."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import types

from ferryman import limits
from ferryman.errors import UsageError

Convert = Callable[[Any], Any]
"""Function that converts a value, not None, to a JSON value."""

_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_encode_in_order = msgspec.json.Encoder().encode


_NO_STRUCT_NAME = re.compile(r'["\\\x00-\x1f]')  # msgspec writes a struct's names as they are, without escapes


class RowEncoder:
    """Converts batches of one schema to ids and JSON, which equals the result of ``encode_fields`` for each row.

    Values are converted from Arrow to Python a column at a time. A row is a ``msgspec.Struct``, filled and encoded
    without Python code per row: a row of five columns takes half a microsecond, with dicts two.

    Args:
        source: name of the source's class, for messages.

    Raises:
        UsageError: no column has this name, two columns share one, or ids cannot be made of this column.
    """

    def __init__(self, schema: pa.Schema, id: str | None, source: str) -> None:
        check_names(schema.names, id, source)
        self.schema = schema
        self._id = None if id is None else schema.names.index(id)
        if id is not None and self._id is not None:
            self._id_casts = _casts_of(schema.types[self._id])
            self._id_text = _id_text(id, schema.types[self._id], source)
        order = sorted(range(len(schema.names)), key=lambda i: schema.names[i])
        self._row = row_maker([schema.names[i] for i in order])
        self._columns = [(i, _casts_of(schema.types[i]), _converter(schema.types[i])) for i in order]
        for name, kind in zip(schema.names, schema.types, strict=True):
            if _nesting(kind) >= limits.NESTED:
                raise UsageError(f"{source}: column {name!r} is nested more than {limits.NESTED} deep.")
        nested = any(kind.num_fields for kind in schema.types)
        self._encode = _encode_sorted if nested else _encode_in_order  # the columns are in order already

    def encode(self, batch: pa.RecordBatch) -> tuple[list[str | None], list[bytes]]:
        """Return ids, None or "" for rows without one, and encoded fields."""
        ids: list[str | None] = [None] * batch.num_rows
        if self._id is not None:
            ids = _values(batch.column(self._id), self._id_casts, self._id_text)
        columns = [_values(batch.column(i), casts, convert) for i, casts, convert in self._columns]
        if not columns:
            return ids, [b"{}"] * batch.num_rows
        return ids, list(map(self._encode, map(self._row, *columns)))


def encode_batches(
    batches: Iterable[pa.RecordBatch], id: str | None, source: str
) -> Iterator[tuple[list[str | None], list[bytes]]]:
    """Yield ids and encoded fields of each batch, whose schemas may differ, see ``RowEncoder``."""
    encoder: RowEncoder | None = None
    for batch in batches:
        if encoder is None or encoder.schema != batch.schema:
            encoder = RowEncoder(batch.schema, id, source)
        yield encoder.encode(batch)


def _nesting(kind: pa.DataType) -> int:
    """Return the depth of nested lists, structs and maps."""
    inner = [kind.field(at).type for at in range(kind.num_fields)] if not types.is_map(kind) else []
    inner += [kind.key_type, kind.item_type] if types.is_map(kind) else []
    return 1 + max(map(_nesting, inner)) if inner else 0


def _values(column: pa.Array, casts: list[pa.DataType], convert: Convert | None) -> list[Any]:
    for kind in casts:
        column = column.cast(kind)
    values: list[Any] = column.to_pylist()
    return values if convert is None else _convert_all(values, convert)


def row_maker(names: list[str]) -> Callable[..., Any]:
    """Return a function that combines a row's values, in the order of these names, to an object to encode."""
    if any(_NO_STRUCT_NAME.search(name) for name in names):
        return lambda *values: dict(zip(names, values, strict=True))
    fields = {f"c{at}": name for at, name in enumerate(names)}
    return msgspec.defstruct("Row", list(fields), rename=fields, gc=False)


def check_names(names: list[str], id: str | None, source: str) -> None:
    """
    Raises:
        UsageError: no column has this name, or two columns share one; names them.
    """
    if id is not None and id not in names:
        raise UsageError(f"{source}(id={id!r}): there is no such column. There are: {', '.join(names)}.")
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise UsageError(f"{source}: two columns are called {', '.join(duplicates)}: give them names of their own.")


def id_type_error(name: str, kind: str, source: str) -> str:
    """Return the error text for a column whose type cannot be an id."""
    return f"{source}(id={name!r}): the column holds {kind}; an id is text or a number. Cast it to text."


def _id_text(name: str, kind: pa.DataType, source: str) -> Convert | None:
    """Return the conversion of an id to text, after the casts; None if it is text."""
    if types.is_string(kind) or types.is_large_string(kind):
        return None
    if types.is_integer(kind):
        return str
    if types.is_floating(kind):
        return _number_text
    if types.is_decimal(kind):
        return _plain_decimal
    raise UsageError(id_type_error(name, str(kind), source))


def _casts_of(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types that a column is cast to, one after the other, before it is converted to Python.

    Times become text in Arrow, because Python's types end with the year 9999. An instant is converted to UTC first, so
    that its text (and the document's version) does not depend on the session's time zone. A single-precision number
    becomes text too: 0.1 stays 0.1, where Python would have 0.10000000149011612.
    """
    utc = _map_types(kind, _in_utc)
    text = _map_types(utc, _as_text)
    return ([] if utc == kind else [utc]) + ([] if text == utc else [text])


def _map_types(kind: pa.DataType, swap: Convert) -> pa.DataType:
    """Return a type with each innermost type in it replaced."""
    if types.is_map(kind):
        return pa.map_(_map_types(kind.key_type, swap), _map_types(kind.item_type, swap))
    if _is_list(kind):
        return pa.list_(_map_types(kind.value_type, swap))
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _map_types(field.type, swap)) for field in kind])
    return swap(kind)


def plain_types(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the plain types in place of views, dictionaries and extensions, which some readers make."""

    def swap(kind: pa.DataType) -> pa.DataType:
        if isinstance(kind, pa.BaseExtensionType):
            return _map_types(kind.storage_type, swap)
        if types.is_dictionary(kind):
            return _map_types(kind.value_type, swap)
        if types.is_string_view(kind):
            return pa.string()
        return pa.binary() if types.is_binary_view(kind) else kind

    return pa.schema([pa.field(field.name, _map_types(field.type, swap)) for field in schema])


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if not types.is_timestamp(kind):
        return kind
    return pa.timestamp("ns" if kind.unit == "ns" else "us", None if kind.tz is None else "UTC")


def _as_text(kind: pa.DataType) -> pa.DataType:
    is_time = types.is_temporal(kind) and not types.is_duration(kind)
    return pa.string() if is_time or types.is_decimal(kind) or types.is_float32(kind) else kind


def _converter(kind: pa.DataType) -> Convert | None:
    """Return the conversion of a column's values to JSON values, after the casts; None if they need none."""
    if types.is_timestamp(kind) or types.is_time(kind):
        return _iso_moment
    if types.is_decimal(kind):
        return _plain_decimal
    if types.is_float32(kind):
        return float
    if types.is_map(kind):
        key, item = _converter(kind.key_type) or _identity, _converter(kind.item_type) or _identity
        return lambda pairs: {_key_name(key(k)): None if v is None else item(v) for k, v in pairs}
    if _is_list(kind):
        element = _converter(kind.value_type)
        return None if element is None else lambda values: _convert_all(values, element)
    if types.is_struct(kind):
        fields = {field.name: convert for field in kind if (convert := _converter(field.type)) is not None}
        if not fields:
            return None
        return lambda row: row | {n: None if row[n] is None else convert(row[n]) for n, convert in fields.items()}
    return None


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _convert_all(values: list[Any], convert: Convert) -> list[Any]:
    return [None if value is None else convert(value) for value in values]


def _identity(value: Any) -> Any:
    return value


def _key_name(key: Any) -> str:
    """Convert a map's key to a name in a JSON object."""
    return key if isinstance(key, str) else _encode_sorted(key).decode().strip('"')


def _iso_moment(text: str) -> str:
    """Convert Arrow's text of a time, ``2024-05-01 10:00:00.000000Z``, to ISO 8601."""
    if text.endswith(".000000Z"):  # most are whole seconds in UTC
        return text[:-8].replace(" ", "T", 1) + "Z"
    whole, _, rest = text.replace(" ", "T", 1).partition(".")
    digits = rest.removesuffix("Z")
    fraction = digits.removesuffix("000") if len(digits) > 6 else digits
    return whole + (f".{fraction}" if fraction.strip("0") else "") + ("Z" if rest.endswith("Z") else "")


def _plain_decimal(text: str) -> str:
    """Return a decimal's text without an exponent."""
    return format(Decimal(text), "f") if "E" in text else text


def _number_text(value: float | str) -> str:
    """Return the text of a number as Python writes it; "" for NaN, which cannot be an id."""
    number = float(value)
    return "" if number != number else str(number)
