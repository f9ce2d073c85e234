"""What a newcomer is told: of a new state, of what is not installed, of counts that are all zero, of exit code 4."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from ferryman import Plan
from ferryman.cli.app import start
from ferryman.cli.run import describe_new_state, print_summary
from ferryman.destinations import Null
from ferryman.engine.summary import Summary
from ferryman.errors import PlanError
from ferryman.sources import Csv, Files, Jobs, Memory
from tests.support.plan_world import run_plan

PLAN = """
from ferryman import Plan
from ferryman.destinations import Null
from ferryman.sources import Memory

plan = Plan("small", version=2)
plan.source("docs", Memory([{"id": "a", "raw": b"x"}])).destination("out", Null())
"""


def small(version: int = 2) -> Plan:
    plan = Plan("small", version=version)
    plan.source("docs", Memory([{"id": "a", "raw": b"x"}])).destination("out", Null())
    return plan


def test_a_new_state_is_named_with_its_neighbours(tmp_path: Path) -> None:
    """Of a plan that was renamed, or whose state is gone, everything is sent again."""
    run_plan(small(1), tmp_path)
    assert describe_new_state(tmp_path / "small-v2", 2) == (
        f"new state: {tmp_path}/small-v2; others here: small-v1. To continue from an older version: --from-version 1. "
        "Every document is new to it, and is sent."
    )
    assert describe_new_state(tmp_path / "renamed-v2", 2).startswith(
        f"new state: {tmp_path}/renamed-v2; others here: small-v1. E"
    )
    assert describe_new_state(tmp_path / "alone" / "small-v2", 2).startswith(
        f"new state: {tmp_path}/alone/small-v2. Every"
    )


def test_the_newest_older_version_is_offered(tmp_path: Path) -> None:
    """By number: 10 is newer than 9; what is newer than the plan, or of another plan, is none to continue from."""
    for name in ("small-v9", "small-v10", "small-v12", "small-v-v1", "smaller-v10", "small-vx"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").write_text("{}")
    assert "--from-version 10." in describe_new_state(tmp_path / "small-v11", 11)
    assert "--from-version 9." in describe_new_state(tmp_path / "small-v10", 10)
    assert "--from-version" not in describe_new_state(tmp_path / "small-v8", 8)


def test_a_run_says_that_its_state_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it sends anything; a state that is there is not mentioned."""
    (tmp_path / "plan.py").write_text(PLAN)

    def run(plan: Plan, *, state: Path, **_: Any) -> Summary:
        return run_plan(plan, state)

    monkeypatch.setattr("ferryman.operations.run", run)
    assert start(["run", str(tmp_path / "plan.py")]) == 0
    assert capsys.readouterr().err.startswith(f"new state: {tmp_path}/.ferryman/small-v2. ")
    assert start(["run", str(tmp_path / "plan.py")]) == 0
    assert "new state" not in capsys.readouterr().err


def test_status_before_anything_has_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Zeros prove nothing."""
    (tmp_path / "plan.py").write_text(PLAN)
    assert start(["status", str(tmp_path / "plan.py")]) == 0
    out = capsys.readouterr().out
    assert "Nothing has run yet" in out
    assert "Balanced" not in out


def test_exit_code_4_beside_no_pending_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One broken row of a file: nobody knows what comes after it."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.csv").write_text('id,title\n1,one\n2,"two\n3,three\n')
    plan = Plan("rows")
    plan.source("rows", Csv(tmp_path / "rows")).destination("out", Null())
    summary = run_plan(plan, tmp_path / "state", wait=0)
    assert (summary.exit, summary.pending) == (4, 0)
    print_summary(summary, tmp_path / "state" / "rows-v0", plan, "plan.py", None)
    assert "Exit code 4 although nothing is pending" in capsys.readouterr().out


@pytest.mark.rule("check.extras")
@pytest.mark.parametrize(
    ("source", "module", "install"),
    [
        (Files("s3://bucket/docs"), "s3fs", "'ferryman[s3]'"),
        (Csv("s3://bucket/rows.csv"), "fsspec", "'ferryman[fsspec]'"),
        (Files("zip::s3://bucket/a.zip"), "s3fs", "'ferryman[s3]'"),
        (Files("gs://bucket/docs"), "gcsfs", "gcsfs"),
        (Jobs("zookeeper://localhost:2181/queue"), "kazoo", "'ferryman[intake]'"),
    ],
)
def test_a_missing_extra_is_found_by_plan_check(
    source: Any, module: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that installs it."""
    there = importlib.util.find_spec

    def find_spec(name: str, *rest: Any) -> Any:
        return None if name == module else there(name, *rest)

    for package in ("net.drives", "intake.source"):
        monkeypatch.setattr(f"ferryman.{package}.find_spec", find_spec)
    plan = Plan("extras")
    plan.source("there", source).destination("out", Null())
    with pytest.raises(PlanError) as refused:
        plan.check()
    [finding] = refused.value.findings
    assert finding.startswith("there: ")
    assert module in finding
    assert finding.endswith(f"pip install {install}.")


def test_what_is_installed_is_not_mentioned() -> None:
    """A folder needs nothing, S3 what the tests have."""
    for source in (Files("docs"), Files("s3://bucket/docs"), Csv("zip://::/data/rows.zip")):
        assert source.not_installed() == ""
