"""Fields that only tell where a file is do not make it another one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ferryman.plan import Plan
from ferryman.sources import Files
from tests.support.plan_world import run_plan
from tests.support.recorder import Recorder


def run(place: Path, **options: Any) -> list[dict[str, Any]]:
    """What arrives in a run."""
    out = Recorder(place / "out.jsonl")
    out.forget()
    plan = Plan("about", version=1)
    plan.source("files", Files(place / "in", **options)).destination("out", out)
    assert run_plan(plan, place / "state").exit == 0
    return out.lines()


@pytest.mark.rule("files.fields")
@pytest.mark.parametrize("detect", ["content", "fingerprint"])
def test_a_new_time_is_no_change(place: Path, detect: str) -> None:
    """A file that is touched is not sent again; one whose bytes change is, with its new fields."""
    (place / "in").mkdir()
    file = place / "in" / "a.txt"
    file.write_text("one")
    os.utime(file, (1, 1))
    [first] = run(place, detect=detect)
    assert first["fields"]["modified"] == "1970-01-01T00:00:01Z"
    os.utime(file, (2, 2))
    assert run(place, detect=detect) == []
    assert run(place, detect=detect, base_url="https://example.org") == []
    file.write_text("three")
    os.utime(file, (3, 3))
    [second] = run(place, detect=detect)
    assert (second["fields"]["size"], second["fields"]["modified"]) == (5, "1970-01-01T00:00:03Z")


@pytest.mark.rule("files.fields")
def test_fields_that_count_are_a_change(place: Path) -> None:
    (place / "in").mkdir()
    (place / "in" / "a.txt").write_text("one")
    run(place, counted="uri")
    assert run(place, counted="uri") == []
    [again] = run(place, counted="uri", base_url="https://example.org")
    assert again["fields"]["uri"] == "https://example.org/a.txt"
