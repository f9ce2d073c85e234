"""Vectors in destinations: how a plan declares them, which values are vectors, and how a question is asked.

A destination that stores vectors is a ``VectorDestination``. It is written like any other one, by the fields of its
deliveries, and asked by anybody who has the plan:

    vectors = {"vector": 256}                            the field ``vector`` has 256 numbers
    check()                                              driver: the store has an index for them, or gets one
    write([d1, d2, d3])                                  worker; d2's vector has 255 numbers: its outcome is permanent
    nearest("vector", question, 10, {"team": "a"})       anybody, any time: the ten nearest documents of team a

What is promised of a delivery and its vector is what the destination promises of a delivery: a repeated one changes
nothing, a late one is stale, also after a delete. ``ferryman.testing.vectors`` has a test for each of these promises.

Stores that are made for vectors keep a ``VectorRow`` of each document: fields, text and vectors apart, with tokens by
which they filter, and remember deletes for ``TOMBSTONE_S``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, get_args

import msgspec

from ferryman import limits
from ferryman.destinations.base import (
    Delivery,
    Destination,
    DestinationContext,
    Hit,
    LastDelivery,
    Outcome,
    canonical_fields,
    compare,
    content_hash,
    printable_id,
)
from ferryman.document import encode_fields, is_text
from ferryman.errors import BadDocument, DeliveryError, Misconfigured, UsageError, safe_repr

if TYPE_CHECKING:
    import numpy as np

Metric = Literal["cosine", "l2", "dot"]
NumberType = Literal["float32", "float16"]
IndexKind = Literal["hnsw"]

Scalar = str | int | float | bool
Where = Mapping[str, Scalar | Sequence[Scalar]]
"""Filter as it is given: field -> value, or values. See ``read_filter``."""

Filter = Mapping[str, tuple[Scalar, ...]]
"""Filter as ``read_filter`` returns it."""

VECTOR_WRITE_S: Final = limits.SEND_TIMEOUT_S - 10
"""Seconds that a ``write`` to a server has, with all its requests."""

MOST_DIMENSIONS: Final = 16_000
"""Dimensions that any of the stores can hold."""


@dataclass(frozen=True)
class VectorField:
    """Declaration of a field that holds a vector: ``vectors={"vector": VectorField(256, metric="dot")}``. A number
    alone stands for ``VectorField(number)``.

    Attributes:
        dimensions: numbers in each vector.
        metric: "cosine": the angle counts, not the length. "l2": the distance. "dot": the inner product, which is the
            cosine of vectors of length 1, and faster.
        index: "hnsw": an index that finds nearly all of the nearest without a look at each vector. None: what the
            store does by itself, which may be a look at each vector.
        type: of the stored numbers; "float16" halves the space, where the store has it.
        model: name of the model that makes the vectors. A store remembers it, and refuses a plan that names another:
            vectors of two models cannot be compared, though they may have the same dimensions.
    """

    dimensions: int
    metric: Metric = "cosine"
    index: IndexKind | None = None
    type: NumberType = "float32"
    model: str = ""

    def remembered(self) -> dict[str, Any]:
        """Return what a store keeps of the declaration, as JSON values, to compare it with later ones."""
        return {"dimensions": self.dimensions, "model": self.model}


Declaration = Mapping[str, int | VectorField]
"""Declaration of a destination's vectors, as a plan gives it: field -> dimensions, or more."""


def vector_fields(vectors: Declaration | None) -> dict[str, VectorField]:
    """Return the declaration with a ``VectorField`` for each field; call ``declaration_findings`` before."""
    return {name: v if isinstance(v, VectorField) else VectorField(v) for name, v in (vectors or {}).items()}


def declaration_findings(vectors: Declaration | None) -> Iterator[str]:
    """Yield a text for each mistake in the declaration of vectors, with the remedy."""
    if vectors is not None and not isinstance(vectors, Mapping):
        yield f"vectors={safe_repr(vectors)}: give the dimensions of each field: vectors={{'vector': 256}}"
        return
    for name, declared in (vectors or {}).items():
        where = f"vectors: {safe_repr(name)}"
        field = VectorField(declared) if not isinstance(declared, VectorField) else declared
        if not isinstance(name, str) or not name:
            yield f"{where} is not the name of a field"
        if not _is_int(field.dimensions) or not 1 <= field.dimensions <= MOST_DIMENSIONS:
            yield f"{where} has {safe_repr(field.dimensions)} dimensions: give a number from 1 to {MOST_DIMENSIONS}"
        for option, value, known in (
            ("metric", field.metric, get_args(Metric)),
            ("index", field.index, (None, *get_args(IndexKind))),
            ("type", field.type, get_args(NumberType)),
        ):
            if value not in known:
                yield f"{where}: {option}={safe_repr(value)}: use {' or '.join(map(repr, known))}"


def check_remembered(
    where: str, name: str, field: VectorField, there: Mapping[str, Any], container: str
) -> dict[str, Any]:
    """Check that a store was made for vectors like these; return what it is to remember from now on.

    Args:
        there: ``remembered`` of the declaration that it was made with.
        container: argument that names the store: "table", "index".

    Raises:
        Misconfigured: it has another number of dimensions or another model; the message says what to do.
    """
    ours = field.remembered()
    for what, of in (("dimensions", "dimensions"), ("model", "vectors of the model")):
        before, now = there.get(what), ours[what]
        if before and now and before != now:
            raise Misconfigured(
                f"{where}: {safe_repr(name)} has {_worded(of, before)} there, the plan says {_worded(of, now)}, and "
                "the two cannot be compared. Give the plan a higher version and this destination another "
                f"{container}=, and run it with --from-version: all documents are written there, and the {container} "
                "that is there can be searched until the new one is complete."
            )
    return {**there, **{what: value for what, value in ours.items() if value}}


def _worded(of: str, value: Any) -> str:
    return f"{value} {of}" if of == "dimensions" else f"{of} {value}"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Values of fields.


def read_vector(value: Any, name: str, field: VectorField) -> np.ndarray[Any, Any] | None:
    """Return the vector in a document's field as float32; None: the document has none.

    Args:
        value: a list of numbers, a NumPy array, or a list of Arrow (an array, or a scalar of a list type).
        name: name of the field, for the error.

    Raises:
        BadDocument: another number of dimensions, a value that is not a finite number, or is not one as a float32 (or
            float16); only zeros, which have no angle. Names the field.
    """
    import numpy as np

    if value is None:
        return None
    if hasattr(value, "to_numpy") or hasattr(value, "as_py"):
        value = _from_arrow(value)
        if value is None:
            return None
    where = f"field {safe_repr(name)}"
    if not isinstance(value, list | tuple | np.ndarray):
        raise BadDocument(f"{where} holds a {type(value).__name__}, not a vector: give a list of numbers.")
    try:
        numbers = np.asarray(value)
    except (ValueError, TypeError, OverflowError):
        numbers = np.empty((0, 0), object)
    if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "fiu"):
        raise BadDocument(f"{where} holds something other than numbers, so it is not a vector.")
    if len(numbers) != field.dimensions:
        raise BadDocument(
            f"{where} has {len(numbers)} dimensions, the plan says {field.dimensions}. Was it made by another model?"
        )
    if not np.isfinite(numbers).all():
        raise BadDocument(f"{where} holds NaN or infinity at place {int(np.argmin(np.isfinite(numbers)))}.")
    with np.errstate(over="ignore"):
        vector = numbers.astype(np.float16 if field.type == "float16" else np.float32).astype(np.float32)
    vector += 0  # no -0.0: stores differ in whether they keep the sign
    if not np.isfinite(vector).all():
        raise BadDocument(f"{where} holds a number that is too large for {field.type}.")
    if field.metric == "cosine" and not vector.any():
        raise BadDocument(f"{where} holds only zeros, which point nowhere: metric='cosine' cannot compare them.")
    return vector


def _from_arrow(value: Any) -> Any:
    """Return an Arrow array, or a scalar of a list type, as a list or a NumPy array."""
    if hasattr(value, "to_pylist"):
        return value.to_pylist()
    return value.as_py() if hasattr(value, "as_py") else value.to_numpy()


class VectorRows(NamedTuple):
    """Deliveries whose vectors can be stored, with these."""

    deliveries: list[Delivery]
    vectors: list[dict[str, np.ndarray[Any, Any]]]
    """Field -> vector, for each delivery; fields without one are left out."""
    positions: list[int]
    """Where in the chunk each delivery stands."""


def read_vectors(
    chunk: Sequence[Delivery], fields: Mapping[str, VectorField], outcomes: list[Outcome | None]
) -> VectorRows:
    """Return the deliveries whose vectors can be stored; set a permanent outcome for the others, at their places in
    ``outcomes``."""
    rows = VectorRows([], [], [])
    for position, delivery in enumerate(chunk):
        vectors = {}
        try:
            if delivery.operation == "upsert":
                for name, field in fields.items():
                    vector = read_vector(delivery.fields.get(name), name, field)
                    if vector is not None:
                        vectors[name] = vector
        except BadDocument as e:
            outcomes[position] = Outcome.permanent(f"{printable_id(delivery)}: {e}")
        else:
            rows.deliveries.append(delivery)
            rows.vectors.append(vectors)
            rows.positions.append(position)
    return rows


# Documents as vector stores keep them.

TOMBSTONE_S: Final = 3600
"""Time that a delete is remembered, during which older upserts are refused. Ferryman sends nothing more than a minute
late; the rest allows for workers whose clocks differ. A remembered delete takes some 200 bytes."""

TOKEN_BYTES: Final = 200
"""Longest token that is kept as text; of a longer one its hash is kept."""

_encode = msgspec.json.Encoder(order="sorted").encode


class VectorRow(NamedTuple):
    """A delivery as a vector store keeps it.

    Attributes:
        position: its place in the chunk.
        text: the raw bytes decoded; None: it has none.
        fields: the fields without vectors, as JSON with sorted keys; ``{}`` for a delete.
        vectors: field -> vector, as float32.
    """

    position: int
    delivery: Delivery
    text: str | None
    fields: bytes
    vectors: Mapping[str, np.ndarray[Any, Any]]

    def content_hash(self, with_vectors: bool = True) -> str:
        """Return a hash of all that is stored, see ``stored_hash``."""
        d = self.delivery
        names = (d.id, d.hash, d.sequence, d.parent_id, d.origin_id, d.source, d.version, route_text(d.route))
        return stored_hash(names, self.text, self.fields, self.vectors if with_vectors else {})


def stored_hash(
    names: Sequence[str | int | None], text: str | None, fields: bytes, vectors: Mapping[str, np.ndarray[Any, Any]]
) -> str:
    """Return a hash of a stored document, by which ``ferryman verify`` sees whether somebody has changed it.

    Args:
        names: id, hash, sequence, parent, origin, source, version and route.
        fields: without vectors, as JSON with sorted keys.
        vectors: as float32, as they were written.
    """
    numbers = [part for name in sorted(vectors) for part in (name, vectors[name].astype("<f4").tobytes())]
    return content_hash(*names, text, canonical_fields(fields), *numbers)


def route_text(route: Sequence[str]) -> str:
    """Return a route as JSON."""
    return _encode(list(route)).decode()


def read_rows(
    chunk: Sequence[Delivery], vectors: Mapping[str, VectorField], outcomes: list[Outcome | None]
) -> list[VectorRow]:
    """Return the deliveries that can be stored; set a permanent outcome for the others."""
    found = read_vectors(chunk, vectors, outcomes)
    rows = []
    for position, delivery, numbers in zip(found.positions, found.deliveries, found.vectors, strict=True):
        try:
            if not delivery.id:
                raise BadDocument("its id is empty. Give it one in the source.")
            _encode([delivery.id, delivery.parent_id, delivery.origin_id])
            text, fields = None, b"{}"
            if delivery.operation == "upsert":
                text = None if delivery.raw is None else delivery.text()
                fields = encode_fields({k: v for k, v in delivery.fields.items() if k not in vectors})
        except (BadDocument, ValueError, TypeError) as e:
            outcomes[position] = Outcome.permanent(f"{printable_id(delivery)}: {e}")
        else:
            rows.append(VectorRow(position, delivery, text, fields, numbers))
    return rows


def newest_rows(rows: Sequence[VectorRow]) -> list[VectorRow]:
    """Return the last version of each document."""
    _, winners = compare([row.delivery for row in rows], {})
    return [row for row in rows if winners[row.delivery.id] is row.delivery]


def outcome_of(delivery: Delivery, stored: LastDelivery | None) -> Outcome | None:
    """Return what became of a delivery, by what the store has of its id afterwards; None: it was not stored."""
    if stored is None:
        return None
    if stored.hash == delivery.hash and stored.sequence >= delivery.sequence:
        return Outcome.ok()
    return Outcome.stale() if stored.sequence > delivery.sequence else None


def record_stored(
    rows: Sequence[VectorRow], stored: Mapping[str, LastDelivery], outcomes: list[Outcome | None], target: str
) -> None:
    """Set the outcome of each row by what a store has of its id afterwards: stores do not name what they skip."""
    for row in rows:
        outcome = outcome_of(row.delivery, stored.get(row.delivery.id))
        outcomes[row.position] = outcome or Outcome.transient(f"{target}: it was not stored")


# Tokens: one for each value that a filter may ask for, so that a store needs only lists of text to filter by any field.


def filter_tokens(fields: Mapping[str, Any]) -> list[str]:
    """Return a token for each text, number and truth value among the fields, alone or in a list: ``team="a"``."""
    tokens: dict[str, None] = {}
    for name, value in fields.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, str | int | float):
                tokens[filter_token(name, each)] = None
    return list(tokens)


def filter_token(name: str, value: Scalar) -> str:
    """Return the token of a field's value. Equal values have equal tokens: 1 and 1.0 have, 1 and true have not."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    shown = str(value) if isinstance(value, int) and not isinstance(value, bool) else _encode(value).decode()
    token = f"{name}={shown}"
    encoded = token.encode()
    return token if len(encoded) <= TOKEN_BYTES else f"#{blake2b(encoded, digest_size=16).hexdigest()}"


# Destinations.


class VectorDestination(Destination):
    """A destination that stores vectors, and finds the nearest ones.

    Attributes:
        vectors: the fields that hold a vector; {}: none, then there is nothing to ask.
    """

    vectors: Mapping[str, VectorField] = {}

    @property
    def has_full_text(self) -> bool:
        """Return whether ``hybrid`` can be asked."""
        return False

    def nearest(self, field: str, vector: Sequence[float], limit: int = 10, where: Where | None = None) -> list[Hit]:
        """Return the documents whose vectors are nearest, the best first: ``limit`` of them where there are so many.

        Called by anybody who has the plan, without ``check`` and ``open``, also while workers write. Deleted documents
        are not found.

        Args:
            field: one of ``vectors``.
            vector: the question, as ``read_vector`` takes it.
            where: fields that the documents must have, see ``read_filter``. A filter never makes the result shorter
                than ``limit`` while documents that fit it are there.

        Returns:
            For each document its ``score`` (see ``score_of``), its distance as ``rank``, and its fields and text.

        Raises:
            UsageError: an argument that cannot be meant, or there is no such store.
            Unavailable, Misconfigured: the store does not answer, or refuses.
        """
        raise NotImplementedError

    def hybrid(
        self, text: str, field: str, vector: Sequence[float], limit: int = 10, where: Where | None = None
    ) -> list[Hit]:
        """Return the documents that have the words of ``text`` or are nearest, those that are both first.

        The arguments and errors are those of ``nearest``, and ``has_full_text`` says whether a store can do it.
        """
        raise NotImplementedError


class VectorServer(VectorDestination):
    """Base of vector stores that are servers with a client: connections, errors, the time that a ``write`` may take.

    Attributes:
        request_s: time-out of a request, in seconds.
        package: module of the client, and the extra that installs it.
    """

    request_s: ClassVar[float]
    package: ClassVar[tuple[str, str]]
    _client: Any = None

    def _connect(self) -> Any:
        """Return a client, with a ``close``.

        Raises:
            Unavailable, Misconfigured: the server does not answer, or refuses.
        """
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_client": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target()!r})"

    def not_installed(self) -> str:
        return missing_package(*self.package, type(self).__name__)

    def open(self, context: DestinationContext) -> None:
        self._client = self._connect()

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        client = self._connect()
        try:
            yield client
        finally:
            client.close()

    def _begin_write(self) -> float:
        """Return the time until which all requests of a ``write`` must have begun."""
        if self._client is None:
            raise Misconfigured(f"{self.target()}: write before open")
        return time.monotonic() + VECTOR_WRITE_S - self.request_s

    def _check_time(self, until: float) -> None:
        """
        Raises:
            ConnectionError: there is no time for another request.
        """
        if time.monotonic() > until:
            raise ConnectionError(f"{self.target()}: it is too slow")

    @contextmanager
    def _translated_errors(self, *, sent: bool = False) -> Iterator[None]:
        """Translate the client's errors.

        Args:
            sent: see ``_translate``.
        """
        try:
            yield
        except (DeliveryError, UsageError, ConnectionError):
            raise
        except ImportError as e:
            raise Misconfigured(f"{self.not_installed() or e}.") from e
        except Exception as e:
            raise self._translate(e, sent) from e

    def _translate(self, error: Any, sent: bool) -> Exception:
        """Return the error to raise for one of the client's.

        Args:
            sent: it is of a request of ``write``, which may have taken effect, and whose documents may be to blame.
        """
        raise NotImplementedError


def missing_package(module: str, extra: str, destination: str) -> str:
    """Return that a destination's client is missing, with the command that installs it; "" if it is there."""
    if find_spec(module) is not None:
        return ""
    return f"{destination} needs the extra [{extra}]: pip install 'ferryman[{extra}]'"


def another_vector(target: str, what: str) -> str:
    """Return the text of the error for a store whose vectors are not those of the plan."""
    return (
        f"{target}: {what}. What is stored stays as it is: name a new place in the plan, give the plan a higher "
        "version, and run it with --from-version."
    )


# Questions.


def read_question(vectors: Mapping[str, VectorField], field: str, vector: Any) -> np.ndarray[Any, Any]:
    """Return the vector of a question as float32.

    Raises:
        UsageError: there is no such field, or the vector does not fit it.
    """
    declared = vectors.get(field)
    if declared is None:
        known = ", ".join(map(repr, vectors)) or "none: the destination is given no vectors="
        raise UsageError(f"there is no vector field {safe_repr(field)}; there is {known}.")
    try:
        question = read_vector(vector, field, declared)
    except BadDocument as e:
        raise UsageError(f"the question: {e}") from None
    if question is None:
        raise UsageError("the question has no vector.")
    return question


def read_filter(where: Where | None) -> dict[str, tuple[Scalar, ...]]:
    """Return field -> values of a filter.

    A document fits it if each of the fields holds one of the values, or a list with one of them:
    ``{"team": "a", "acl": ["sales", "all"]}``. Text is compared as it is, with case; 1 equals 1.0, and not true.

    Raises:
        UsageError: a value that is not text, a number, true or false, or a field with no value at all.
    """
    if where is not None and not isinstance(where, Mapping):
        raise UsageError(f"the filter {safe_repr(where)} is not a dict of fields: give {{'team': 'a'}}.")
    read = {}
    for name, value in (where or {}).items():
        values = tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
        if not isinstance(name, str) or not name or not is_text(name):
            raise UsageError(f"the filter names a field {safe_repr(name)}: give its name as text.")
        if not values:
            raise UsageError(f"the filter on {safe_repr(name)} has no value: nothing could fit it.")
        for each in values:
            if not _is_comparable(each):
                raise UsageError(
                    f"the filter on {safe_repr(name)} has the value {safe_repr(each)}: give text, a number, True or "
                    "False, or a list of these."
                )
        read[name] = values
    return read


def _is_comparable(value: object) -> bool:
    if isinstance(value, str):
        return is_text(value)
    return isinstance(value, int | float) and abs(value) < _LARGEST


_LARGEST: Final = 2.0**63
"""Size from which no number is compared: stores have integers of 64 bit."""


def fits(fields: Mapping[str, Any], wanted: Filter) -> bool:
    """Return whether a document with these fields fits a filter of ``read_filter``: the rule in Python, by which stores
    are tested, and for those that cannot filter by themselves."""
    for name, values in wanted.items():
        value = fields.get(name)
        held = value if isinstance(value, list | tuple) else [value]
        if not any(_is_equal(one, each) for one in held for each in values):
            return False
    return True


def _is_equal(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def score_of(metric: Metric, distance: float) -> float:
    """Return how like the question a document is, the higher the more: the cosine, the inner product, or
    1 / (1 + distance) of "l2".

    Args:
        distance: 1 - cosine, the inner product with its sign turned, or the distance.
    """
    match metric:
        case "cosine":
            return 1 - distance
        case "dot":
            return -distance
        case _:
            return 1 / (1 + distance)


def hit_of(
    id: str, title: Any, text: str | None, fields: str | bytes | None, distance: float, *, metric: Metric
) -> Hit:
    """Return a stored document and its distance from the question as a hit.

    Args:
        fields: as JSON.
        distance: see ``score_of``.
    """
    content = {} if fields is None else msgspec.json.decode(fields)
    shown = None if title is None else str(title)
    return Hit(id, shown, "", distance, score_of(metric, distance), content, text)


FUSED: Final = 50
"""Hits of each ranking that are looked at to fuse them, at least."""

RANK_CONSTANT: Final = 60
"""Constant of reciprocal ranks, as in the paper that proposed them (Cormack, Clarke, Büttcher 2009): with it no single
list decides alone."""


def fuse_ranks(*rankings: Iterable[Hit], limit: int = 10) -> list[Hit]:
    """Return the hits of several rankings in one, by the sum of the reciprocals of their ranks.

    Their ``score`` is that sum, ``rank`` its negative; everything else is the first ranking's in which a document
    stands, but a snippet that is not empty is preferred.
    """
    scores: dict[str, float] = {}
    hits: dict[str, Hit] = {}
    for ranking in rankings:
        for place, hit in enumerate(ranking, 1):
            scores[hit.id] = scores.get(hit.id, 0) + 1 / (RANK_CONSTANT + place)
            first = hits.setdefault(hit.id, hit)
            if (hit.snippet and not first.snippet) or (hit.fields and not first.fields):
                hits[hit.id] = first._replace(
                    snippet=first.snippet or hit.snippet, fields=first.fields or hit.fields, text=first.text or hit.text
                )
    best = sorted(scores, key=lambda id: (-scores[id], id))[:limit]
    return [hits[id]._replace(rank=-scores[id], score=scores[id]) for id in best]
