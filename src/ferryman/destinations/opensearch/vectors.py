"""Vectors in an index: ``knn_vector`` of OpenSearch, with its engine "lucene", or ``dense_vector`` of Elasticsearch.

The vector is a field of the document, so it is written, refused and replaced with it. Both servers walk a graph (HNSW)
and apply a filter on the way, so that it leaves as many documents as there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ferryman.destinations.base import Hit
from ferryman.destinations.opensearch.documents import OBJECT
from ferryman.destinations.vectors import Filter, Metric, Scalar, VectorField, check_remembered, fits, score_of
from ferryman.errors import Misconfigured, UsageError, safe_repr

CANDIDATES: Final = 100
"""Documents that a question looks at on each shard, at least: more are found better, and slower."""

MOST_HITS: Final = 10_000
"""Most hits of a question: ``index.max_result_window`` of an index that says nothing else."""

META: Final = "ferryman_vectors"
"""Key of the mappings' ``_meta`` with what was declared of the vectors."""

_MOST_DIMENSIONS: Final = {True: 16_000, False: 4_096}
"""Dimensions that OpenSearch and Elasticsearch take."""


class _Names(NamedTuple):
    """Words of a server for the parts of a mapping.

    Attributes:
        metrics: metric -> name of it.
    """

    type: str
    dimensions: str
    metrics: Mapping[Metric, str]


_OPENSEARCH: Final = _Names("knn_vector", "dimension", {"cosine": "cosinesimil", "l2": "l2", "dot": "innerproduct"})
_ELASTICSEARCH: Final = _Names(
    "dense_vector", "dims", {"cosine": "cosine", "l2": "l2_norm", "dot": "max_inner_product"}
)


def declaration_findings(vectors: Mapping[str, VectorField], text: str | None) -> Iterator[str]:
    """Yield a text for each declared field that neither server can hold."""
    for name, field in vectors.items():
        if field.type != "float32":
            yield f"vectors: {name!r}: Lucene has no type={field.type!r}: leave it out"
        if name in (OBJECT, text):
            yield f"vectors: {name!r} is the name of a field that is written anyway; give the field another name"
        if isinstance(name, str) and ("." in name or "*" in name):
            yield f"vectors: {name!r}: the server has a meaning of its own for . and *; give the field another name"


def with_vectors(
    mappings: Mapping[str, Any], vectors: Mapping[str, VectorField], is_opensearch: bool
) -> dict[str, Any]:
    """Add the mapping of the vectors to the plan's mappings."""
    fields = {name: _mapping(field, is_opensearch) for name, field in vectors.items()}
    notes = {name: field.remembered() for name, field in vectors.items()}
    return {
        **mappings,
        "properties": {**mappings.get("properties", {}), **fields},
        "_meta": {**mappings.get("_meta", {}), META: notes},
    }


def _mapping(field: VectorField, is_opensearch: bool) -> dict[str, Any]:
    if is_opensearch:
        # Without an engine the server takes faiss, whose filters and scores differ.
        method = {"name": "hnsw", "engine": "lucene", "space_type": _OPENSEARCH.metrics[field.metric]}
        return {"type": "knn_vector", "dimension": field.dimensions, "method": method}
    # Without index_options the server stores bytes for floats, which costs hits.
    return {
        "type": "dense_vector",
        "dims": field.dimensions,
        "index": True,
        "similarity": _ELASTICSEARCH.metrics[field.metric],
        "index_options": {"type": "hnsw"},
    }


def check_index(
    where: str, vectors: Mapping[str, VectorField], mappings: Mapping[str, Any], is_opensearch: bool
) -> dict[str, Any]:
    """Check that an existing index was made for these vectors; return what it is to remember of them.

    Raises:
        Misconfigured: it was not; the message says what to do.
    """
    names = _OPENSEARCH if is_opensearch else _ELASTICSEARCH
    notes = mappings.get("_meta", {}).get(META, {})
    remembered = dict(notes)
    for name, field in vectors.items():
        there = mappings.get("properties", {}).get(name, {})
        if there.get("type") != names.type:
            is_ = f"{safe_repr(name)} as {there['type']}" if "type" in there else f"no field {safe_repr(name)}"
            raise Misconfigured(
                f"{where}: the index is there, and has {is_}, where vectors= needs {names.type}. Give the plan a "
                "higher version and this destination another index=, and run it with --from-version: all documents are "
                "written there, and the index that is there can be searched meanwhile."
            )
        note = {**notes.get(name, {}), "dimensions": there.get(names.dimensions)}
        remembered[name] = check_remembered(where, name, field, note, "index")
        method = there.get("method", {})
        metric = method.get("space_type", there.get("space_type", there.get("similarity")))
        if metric is not None and metric != names.metrics[field.metric]:
            known = {word: ours for ours, word in names.metrics.items()}
            raise Misconfigured(
                f"{where}: {safe_repr(name)} counts distances there as {known.get(metric, metric)!r}, the plan says "
                f"metric={field.metric!r}. Correct metric=, or give the plan a higher version and this destination "
                "another index=, and run it with --from-version."
            )
    return remembered


def dimension_problem(field: VectorField, is_opensearch: bool) -> str:
    """Return why the server takes no vectors of this size; "" if it does."""
    most = _MOST_DIMENSIONS[is_opensearch]
    return "" if field.dimensions <= most else f"the server takes {most} dimensions, not {field.dimensions}"


# Questions.


def filter_query(wanted: Filter, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the query of a filter, for an index with these fields.

    Raises:
        UsageError: a field is text that is cut into words, so that its value cannot be compared.
    """
    return {"bool": {"filter": [_terms(name, values, properties) for name, values in wanted.items()]}}


def _terms(name: str, values: tuple[Scalar, ...], properties: Mapping[str, Any]) -> dict[str, Any]:
    mapped = properties.get(name, {})
    kind, field = mapped.get("type"), name
    if kind == "text":
        exact = [sub for sub, each in mapped.get("fields", {}).items() if each.get("type") == "keyword"]
        if not exact:
            raise UsageError(
                f"the filter on {safe_repr(name)}: the index cuts this field into words. Map it as a keyword: "
                f"mappings={{'properties': {{{name!r}: {{'type': 'keyword'}}}}}}, in a new index."
            )
        field, kind = f"{name}.{exact[0]}", "keyword"
    fitting = [v for v in values if kind == "keyword" or isinstance(v, bool) == (kind == "boolean")]
    if kind not in ("keyword", "boolean"):
        fitting = [v for v in fitting if not isinstance(v, str) or kind not in _NUMBERS]
    return {"terms": {field: fitting}} if fitting and kind else {"match_none": {}}


_NUMBERS: Final = frozenset(
    {"long", "integer", "short", "byte", "double", "float", "half_float", "scaled_float", "unsigned_long"}
)


def question_request(
    field: str,
    question: Any,
    size: int,
    query: dict[str, Any] | None,
    vectors: Mapping[str, VectorField],
    is_opensearch: bool,
) -> dict[str, Any]:
    """Return the body of a search for the nearest documents.

    Args:
        query: of a filter.
    """
    numbers, candidates = question.tolist(), min(MOST_HITS, max(size, CANDIDATES))
    body: dict[str, Any] = {"size": size, "_source": {"excludes": list(vectors)}}
    filtered = {} if query is None else {"filter": query}
    if is_opensearch:
        body["query"] = {"knn": {field: {"vector": numbers, "k": candidates, **filtered}}}
    else:
        knn = {"field": field, "query_vector": numbers, "k": size, "num_candidates": candidates, **filtered}
        body["knn"] = knn
    return body


class _Found(msgspec.Struct):
    id: str = msgspec.field(name="_id")
    score: float = msgspec.field(name="_score")
    source: dict[str, Any] = msgspec.field(name="_source", default_factory=dict)
    highlight: dict[str, list[str]] = {}


class _FoundHits(msgspec.Struct):
    hits: list[_Found]


class _Answer(msgspec.Struct):
    hits: _FoundHits


_decode = msgspec.json.Decoder(_Answer).decode


def read_hits(
    body: bytes, wanted: Filter, vectors: Mapping[str, VectorField], text: str | None, metric: Metric | None
) -> tuple[list[Hit], int]:
    """Return the hits of an answer that fit the filter, and the number of all.

    The servers compare a number with a precision of their field, so what they find is compared again.

    Args:
        metric: of the question; None: it asked for words.
    """
    found = _decode(body).hits.hits
    hits = []
    for each in found:
        fields = {name: value for name, value in each.source.items() if name != OBJECT and name not in vectors}
        if not fits(fields, wanted):
            continue
        content = fields.pop(text, None) if text is not None else None
        distance = -each.score if metric is None else distance_of(metric, each.score)
        hits.append(
            Hit(
                each.id,
                None if fields.get("title") is None else str(fields["title"]),
                " … ".join(part for parts in each.highlight.values() for part in parts),
                distance,
                None if metric is None else score_of(metric, distance),
                fields,
                content if isinstance(content, str) else None,
            )
        )
    return hits, len(found)


def distance_of(metric: Metric, score: float) -> float:
    """Return the distance of a hit, from the score by which the servers count it."""
    match metric:
        case "cosine":
            return 2 - 2 * score
        case "l2":
            return math.sqrt(max(0.0, 1 / score - 1))
        case _:
            return 1 - score if score >= 1 else 1 / score - 1
