"""Ten steps with a duplicate and a by-field router, beside ten steps in a row: documents a second and delivery."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

from bench import data
from bench.harness import Measurement, Row, Sizes, alternate, empty_folder, phases, spark, speed_row
from ferryman import Plan, run
from ferryman.destinations import Null
from ferryman.plan import Handle
from ferryman.routers import ByField, Duplicate
from ferryman.sources import DataFrame

TARGET = 0.9


def step(document: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    document["characters"] = len(document["body"])
    return document


def kind(document: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    document["kind"] = "abc"[len(document["title"]) % 3]
    return document


def steps(node: Handle, prefix: str, count: int) -> Handle:
    for n in range(count):
        node = node.step(f"{prefix}{n}", step)
    return node


def linear(rows: Path) -> Plan:
    plan = Plan("linear")
    source = plan.source("rows", DataFrame(lambda spark: spark.read.parquet(str(rows))))
    steps(source, "step", 10).destination("nowhere", Null())
    return plan


def branching(rows: Path) -> Plan:
    """Return a plan with ten steps and two deliveries for each document, and two branches it does not take."""
    plan = Plan("branching")
    source = plan.source("rows", DataFrame(lambda spark: spark.read.parquet(str(rows))))
    twice = steps(source, "first", 4).step("kind", kind).route("twice", Duplicate())
    steps(twice, "left", 2).destination("nowhere", Null())
    by_kind = steps(twice, "right", 3).route("by-kind", ByField("kind"))
    for name in "abc":
        by_kind.destination(name, Null())
    return plan


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    rows = data.table(folder / f"rows-{sizes.documents}", sizes.documents)

    def go(plan: Plan, deliveries: int) -> None:
        with phases() as watch:
            summary = run(plan, state=empty_folder(folder / "branches"), spark=spark(), observer=watch)
        assert summary.delivered == deliveries, summary

    two, one = alternate(
        sizes.rounds,
        lambda: go(branching(rows), 2 * sizes.documents),
        lambda: go(linear(rows), sizes.documents),
    )
    each = _half(two)._replace(runs=tuple(_half(took) for took in two.runs))
    what = "10 steps, a duplicate, a by-field router, a delivery; 10 steps in a row"
    yield speed_row(what, sizes.documents, each, one, TARGET, "branches, a delivery")


def _half(took: Measurement) -> Measurement:
    """Return the time of one delivery, from that of two."""
    return took._replace(wall_s=took.wall_s / 2, cpu_s=took.cpu_s / 2)
