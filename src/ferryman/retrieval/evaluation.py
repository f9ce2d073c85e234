"""Measures of an index: how well it finds, for questions of which it is known what should be found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from ferryman import limits
from ferryman.destinations.base import Hit
from ferryman.destinations.vectors import Where
from ferryman.document import decode_json
from ferryman.errors import UsageError, safe_repr
from ferryman.plan import Plan
from ferryman.plan.load import load_plan
from ferryman.retrieval.search import find_destination, find_step, search

_VERSION: Final = re.compile(r"v(\d+)\Z")


class Question(NamedTuple):
    """A question, and what should be found.

    Attributes:
        grades: id of a document or chunk -> how relevant it is, from 1.
        where: fields that the documents must have.
    """

    text: str
    grades: Mapping[str, int]
    where: Where | None = None


@dataclass
class Evaluation:
    """Measures of one version of a plan.

    Attributes:
        label: name and version of the plan, and its destination.
        means: name of a measure -> its mean over all questions, from 0 to 1.
        found: for each question, what was found of it: ids of ``grades`` at their ranks, None for any other hit.
    """

    label: str
    k: int
    questions: Sequence[Question]
    means: Mapping[str, float]
    found: Sequence[Sequence[str | None]]

    def not_found(self) -> list[Question]:
        """Return the questions of which nothing was found that should be."""
        return [q for q, ranks in zip(self.questions, self.found, strict=True) if not any(ranks)]

    def as_dict(self) -> dict[str, Any]:
        """Return what ``ferryman evaluate --json`` prints."""
        each = [
            {"question": q.text, "expected": list(q.grades), "found": [id for id in ranks if id is not None]}
            for q, ranks in zip(self.questions, self.found, strict=True)
        ]
        return {"index": self.label, "k": self.k, "measures": dict(self.means), "questions": each}


def read_questions(path: Path) -> list[Question]:
    """Read a file of JSON lines, each ``{"question": text, "ids": [id, …] or {id: grade}, "where": {field: value}}``.

    Raises:
        UsageError: the file cannot be read, or a line is something else; names the line.
    """
    try:
        if path.stat().st_size > limits.MAX_FILE_BYTES:
            most = limits.format_count(limits.MAX_FILE_BYTES)
            raise UsageError(f"{path}: it has more than {most} bytes. Leave some questions out.")
        lines = path.read_text("utf-8-sig").split("\n")
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}. Give a file of JSON lines.") from e
    except UnicodeDecodeError as e:
        raise UsageError(f"{path}: it is not UTF-8: byte {e.start}. Save it as UTF-8.") from e
    questions = [_question(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not questions:
        raise UsageError(f'{path}: there is no question in it. Write lines of {{"question": "…", "ids": ["…"]}}.')
    return questions


def _question(line: str, where: str) -> Question:
    try:
        value = decode_json(line)
    except ValueError as e:
        raise UsageError(f"{where}: this is not JSON: {e}.") from None
    if not isinstance(value, dict):
        raise UsageError(f'{where}: give an object: {{"question": "…", "ids": ["…"]}}.')
    text, ids = value.get("question"), value.get("ids")
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f'{where}: "question" is {safe_repr(text)}: give a text.')
    if isinstance(ids, str):
        ids = [ids]
    grades = dict.fromkeys(ids, 1) if isinstance(ids, list) and all(isinstance(id, str) for id in ids) else ids
    if not isinstance(grades, dict) or not grades or not all(_is_grade(grade) for grade in grades.values()):
        raise UsageError(f'{where}: "ids" is {safe_repr(ids)}: give the ids that should be found, or {{id: grade}}.')
    if unknown := value.keys() - {"question", "ids", "where"}:
        raise UsageError(f'{where}: {min(unknown)!r} is not known: a line has "question", "ids" and perhaps "where".')
    return Question(text, grades, value.get("where"))


def _is_grade(grade: object) -> bool:
    return isinstance(grade, int) and not isinstance(grade, bool) and grade > 0


def evaluate(
    plan: Plan, questions: Sequence[Question], embed: str, *, index: str | None = None, k: int = 10
) -> Evaluation:
    """Ask a plan's index all questions, and return the measures.

    Args:
        embed: name of the step that computes vectors.
        index: name of the destination; None: the only one with vectors.
        k: number of hits of a question that count.

    Raises:
        UsageError: as ``search``; ir-measures is not installed.
    """
    if find_spec("ir_measures") is None:
        raise UsageError("evaluate needs ir-measures: pip install 'ferryman[evaluate]'.")
    node = find_destination(plan, index)
    find_step(plan, embed)
    found = []
    for question in questions:
        hits = search(node.name, question.text, limit=k, plan=plan, embed=embed, where=question.where)
        found.append(list(_ranks(hits, question.grades)))
    return Evaluation(f"{plan.key} {node.name}", k, questions, measures(questions, found, k), found)


def _ranks(hits: Sequence[Hit], grades: Mapping[str, int]) -> Iterator[str | None]:
    """Yield for each hit the id of ``grades`` that it stands for, None for any other; chunks of a document that was
    found before are left out."""
    seen = set()
    for hit in hits:
        id = _expected_id(hit.id, grades)
        if id is None or id not in seen:
            yield id
        seen.add(id)


def _expected_id(id: str, grades: Mapping[str, int]) -> str | None:
    """Return the expected id that a hit stands for: its own, or that of a document which it is a part of."""
    while id not in grades:
        id, mark, _ = id.rpartition("#")
        if not mark:
            return None
    return id


def measures(questions: Sequence[Question], found: Sequence[Sequence[str | None]], k: int) -> dict[str, float]:
    """Return recall@k, MRR and nDCG@k, each as the mean over all questions.

    Args:
        found: for each question the ids of its ``grades`` at their ranks; None for any other hit.
    """
    import ir_measures
    from ir_measures import RR, Qrel, R, ScoredDoc, nDCG

    wanted = {f"recall@{k}": R @ k, f"MRR@{k}": RR @ k, f"nDCG@{k}": nDCG @ k}
    # ids as numbers: the library's own code ends a text at its first NUL
    numbers = [{id: str(number) for number, id in enumerate(question.grades)} for question in questions]
    qrels = [
        Qrel(str(n), numbers[n][id], grade)
        for n, question in enumerate(questions)
        for id, grade in question.grades.items()
    ]
    run = [
        ScoredDoc(str(n), f"other-{rank}" if id is None else numbers[n][id], -float(rank))
        for n, ids in enumerate(found)
        for rank, id in enumerate(ids)
    ]
    means = ir_measures.calc_aggregate(wanted.values(), qrels, run)
    return {name: float(means[measure]) for name, measure in wanted.items()}


def load_other(spec: str, plan: Plan, against: str, index: str | None) -> Plan:
    """Return the plan to compare with.

    Args:
        spec: the PLAN argument, which has made ``plan``.
        against: ``v1``, a version of the same plan file, or another PLAN.

    Raises:
        UsageError: there is no such plan, or it writes to the same place.
    """
    version = _VERSION.match(against)
    other = load_plan(spec, version=int(version[1])) if version else load_plan(against)
    here, there = (find_destination(each, index).destination.target() for each in (plan, other))
    if here is not None and here == there:
        raise UsageError(
            f"--against {against}: both versions write to {here}, so there is only one index. Have the plan write each "
            "version to a place of its own, named after plan.version: Sql(…, table=f'chunks_v{plan.version}'); or give "
            "an older plan file."
        )
    return other


def label_differently(measured: Sequence[Evaluation]) -> list[str]:
    """Return the label of each, with a number where two have the same."""
    labels = [each.label for each in measured]
    if len(set(labels)) == len(labels):
        return labels
    return [f"{label} ({number})" for number, label in enumerate(labels, 1)]
