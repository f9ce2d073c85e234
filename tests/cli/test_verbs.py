"""The verbs as people and scripts meet them: what they print where, and how they end. No Spark."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman.cli.app import start

Ferryman = Callable[..., Any]
Write = Callable[[str, str], Path]


def test_help_is_there_at_once() -> None:
    """`ferryman --help` loads nothing that takes its time: it is there in a quarter of a second."""
    out, loaded = told_and_loaded("--help")

    for verb in (
        "init",
        "demo",
        "run",
        "preview",
        "status",
        "deliveries",
        "history",
        "retry",
        "search",
        "fsck",
        "plan",
    ):
        assert f"\n  {verb} " in out
    assert not {"pyspark", "pandas", "pyarrow", "duckdb", "deltalake", "sqlalchemy", "rich"} & loaded


def told_and_loaded(*args: str) -> tuple[str, set[str]]:
    """A command's output, and the top-level modules that it loaded."""
    asked = "import atexit, sys, ferryman.cli; atexit.register(lambda: print([*sys.modules])); ferryman.cli.main()"
    done = subprocess.run([sys.executable, "-c", asked, *args], capture_output=True, text=True, check=False)
    out, _, modules = done.stdout.rstrip("\n").rpartition("\n")
    return out, {name.partition(".")[0] for name in ast.literal_eval(modules)}


def test_the_version_is_the_packages(ferryman: Ferryman) -> None:
    """--version names the version that is installed."""
    assert ferryman("--version").out.startswith("ferryman ")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["runn"], "error: No such command 'runn'"),
        (["run"], "error: Missing argument 'PLAN'"),
        (["plan", "show", "plan.py", "--format", "gif"], "error: Invalid value for '--format'"),
        (["run", "plan.py", "--wait", "soon"], "error: --wait soon: give seconds"),
        (["run", "plan.py", "--every", "0"], "error: --every 0: give a time above 0"),
        (["run", "plan.py", "--conf", "spark.ui.enabled"], "error: --conf spark.ui.enabled: give KEY=VALUE"),
        (["deliveries", "plan.py", "--status", "deadd"], "error: --status deadd: choose one of delivered, "),
        (
            ["deliveries", "plan.py", "--destination", "indx"],
            "error: --destination indx: plan small has files, index, words",
        ),
        (["run", "nowhere.py"], "error: nowhere.py: there is no such file"),
        (["fsck", "plan.py"], "there is no state here"),
    ],
)
def test_bad_usage_ends_with_2(ferryman: Ferryman, plan_file: Path, args: list[str], told: str) -> None:
    """One line on stderr says what is wrong and what to do; nothing is on stdout, and nothing was made."""
    done = ferryman(*args)

    assert done.code == 2
    assert told in done.err
    assert done.err.startswith("error: ")
    assert len(done.err.splitlines()) == 1
    assert done.out == ""
    assert sorted(p.name for p in plan_file.parent.iterdir()) == ["plan.py"]


@pytest.mark.parametrize(
    "words", [("preview", "plan.py", "--limit", "0"), ("plan", "show", "plan.py", "--format", "x")]
)
def test_what_is_wrong_with_an_option_is_a_sentence(ferryman: Ferryman, words: tuple[str, ...]) -> None:
    """And so is where the right ones are listed, whoever has written the first."""
    done = ferryman(*words)

    assert done.code == 2
    assert re.fullmatch(r"error: [^\n]+[^.\n]\. `ferryman [a-z ]+ --help` lists what it accepts\.\n", done.err)


def test_no_command_shows_the_help(ferryman: Ferryman) -> None:
    """`ferryman` alone prints its help, to stderr: nothing was asked."""
    done = ferryman()

    assert done.code == 2
    assert done.err.startswith("Usage: ferryman")


def test_verbose_shows_the_traceback(ferryman: Ferryman, write: Write) -> None:
    """Tracebacks are for -v; the error itself is the same."""
    file = write("bad.py", "1 / 0\n")

    plain, verbose = ferryman("plan", "check", file), ferryman("plan", "check", file, "-v")

    assert (
        plain.err
        == f"error: {file}, line 1: ZeroDivisionError: division by zero. Correct it there; -v shows the traceback.\n"
    )
    assert verbose.err.startswith(plain.err)
    assert "Traceback (most recent call last)" in verbose.err
    assert (plain.code, verbose.code) == (2, 2)


# --- plan ---------------------------------------------------------------------------------------------------------


def test_plan_check_says_that_all_is_well(ferryman: Ferryman, plan_file: Path) -> None:
    """A plan that can run ends with 0."""
    done = ferryman("plan", "check", plan_file)

    asked = "The destinations were not asked: --connect asks them."
    assert done == (0, f"plan small, version 2: 3 nodes, all well\n{asked}\n", "")
    assert not (plan_file.parent / "index.db").exists()


def test_check_asks_the_destinations_if_it_shall(
    write: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each one, by the check that a run begins with: which is well, and why another one is not."""
    file = write(
        "plan.py",
        """
        from ferryman import Plan
        from ferryman.destinations import OpenSearch, Sql
        from ferryman.sources import Memory

        plan = Plan("two", version=1)
        plan.source("docs", Memory([])).destination("index", Sql("sqlite:///index.db"))
        plan.source("more", Memory([])).destination("away", OpenSearch("http://127.0.0.1:1", "plays"))
        """,
    )
    assert start(["plan", "check", str(file), "--connect"]) == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2] == "destination index: it can be written to"
    assert lines[-1].startswith("destination away: http://127.0.0.1:1/plays: ")


@pytest.mark.rule("check.durability")
@pytest.mark.parametrize(
    ("guarantee", "says"),
    [("exactly-once", "exactly-once ends where the server loses"), ("at-least-once", "the server may lose")],
)
def test_check_says_where_exactly_once_ends(
    write: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str], guarantee: str, says: str
) -> None:
    """A server whose settings let it lose what it has confirmed is named, with the setting. It can be written to."""
    file = write(
        "plan.py",
        f"""
        from ferryman import Plan
        from ferryman.destinations import Sql
        from ferryman.sources import Memory

        class Careless(Sql):
            def durability_risk(self):
                return "fsync is off: set it on"

        plan = Plan("one", version=1)
        docs = plan.source("docs", Memory([]))
        docs.destination("index", Careless("sqlite:///index.db"), guarantee="{guarantee}")
        """,
    )
    assert start(["plan", "check", str(file), "--connect"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "destination index: it can be written to",
        f"warning: destination index: {says} what it has confirmed: fsync is off: set it on",
    ]


def test_plan_check_names_every_reason(ferryman: Ferryman, write: Write) -> None:
    """All that is wrong is told at once, an error a line."""
    file = write(
        "plan.py",
        """
        from ferryman import Plan
        from ferryman.sources import Files
        plan = Plan("bad")
        plan.source("files", Files("x"))
        plan.step("1", print)
        """,
    )

    done = ferryman("plan", "check", file)

    assert done.code == 2
    lines = done.err.splitlines()
    assert len(lines) > 2
    assert all(line.startswith("error: ") for line in lines)
    assert any("ends here without a destination" in line for line in lines)


def test_plan_show_draws_it(ferryman: Ferryman, plan_file: Path) -> None:
    """The picture goes to stdout, in the form that was asked for."""
    drawn = ferryman("plan", "show", plan_file)
    data = ferryman("plan", "show", plan_file, "--format", "json")
    flowchart = ferryman("plan", "show", plan_file, "--format", "mermaid")
    svg = ferryman("plan", "show", plan_file, "--format", "svg")

    assert {done.code for done in (drawn, data, flowchart, svg)} == {0}
    assert "└─ words" in drawn.out
    assert [n["name"] for n in json.loads(data.out)["nodes"]] == ["files", "words", "index"]
    assert flowchart.out.startswith("flowchart TD\n")
    assert (svg.out[:5], svg.out[-7:]) == ("<svg ", "</svg>\n")


def test_plan_show_draws_what_is_refused(ferryman: Ferryman, write: Write) -> None:
    """Then one sees why."""
    file = write(
        "plan.py",
        """
        from ferryman import Plan
        plan = Plan("bad")
        plan.step("a", print, after=["a", "nowhere"])
        """,
    )

    for form in ("text", "mermaid", "svg", "json"):
        done = ferryman("plan", "show", file, "--format", form)
        assert (done.code, done.err) == (0, "")
        assert "nowhere" in done.out


# --- a plan that never ran ----------------------------------------------------------------------------------------


def test_status_before_the_first_run_is_all_zero(ferryman: Ferryman, plan_file: Path) -> None:
    """A script gets the same JSON as ever; a person is told that nothing has run."""
    done = ferryman("status", plan_file, "--json")

    assert done.code == 0
    assert "nothing has run" in done.err
    zeros = dict.fromkeys(("delivered", "deleted", "dropped", "failed", "rejected", "pending", "in_doubt"), 0)
    assert json.loads(done.out) == {
        "plan": "small",
        "version": 2,
        "waves": 0,
        "sources": {"files": {"documents": 0, "deleted": 0, "again": 0}},
        "destinations": {"index": zeros},
        "balanced": True,
        "running": None,
        "pending_reasons": [],
        "stopped": [],
        "held": 0,
        "verified": {},
    }
    assert sorted(p.name for p in plan_file.parent.iterdir()) == ["plan.py"]


@pytest.mark.parametrize("verb", [["status"], ["deliveries"], ["fsck"], ["retry"], ["history"], ["plan", "check"]])
def test_what_only_asks_is_quick(plan_file: Path, verb: list[str]) -> None:
    """These verbs load neither Spark nor pandas, which would take seconds."""
    args = [*verb, str(plan_file), *(["a.txt"] if verb == ["history"] else [])]
    _, loaded = told_and_loaded(*args)

    assert "ferryman" in loaded
    assert not {"pyspark", "py4j", "pandas"} & loaded


def test_docs_before_the_first_run_are_none(ferryman: Ferryman, plan_file: Path) -> None:
    """No state is no error; no state directory is made by looking."""
    done = ferryman("deliveries", plan_file, "--status", "DEAD", "--json", "--state", "elsewhere")

    assert (done.code, json.loads(done.out)) == (0, [])
    assert str(plan_file.parent / "elsewhere" / "small-v2") in done.err


def test_history_of_an_unknown_document_is_an_error(ferryman: Ferryman, plan_file: Path) -> None:
    """A person is told how to find the ids; a script still gets JSON."""
    done = ferryman("history", plan_file, "no.txt", "--json")

    assert done.code == 2
    assert json.loads(done.out) == []
    assert done.err.startswith("error: no.txt: there is no such document in the state ")
    assert f"ferryman deliveries {plan_file}" in done.err


# --- init ---------------------------------------------------------------------------------------------------------


def test_init_writes_a_plan_that_is_in_order(ferryman: Ferryman, tmp_path: Path) -> None:
    """The new plan is named after its folder, passes the check, and the next command is told."""
    made = ferryman("init", "my plays")

    assert made.code == 0
    assert made.err == ""
    assert "  ferryman run 'my plays/plan.py'" in made.out.splitlines()
    assert len(list((tmp_path / "my plays" / "documents").rglob("*.*"))) == 3
    assert (
        ferryman("plan", "check", "my plays/plan.py").out.splitlines()[0]
        == "plan my-plays, version 1: 3 nodes, all well"
    )


def test_init_overwrites_nothing(ferryman: Ferryman, write: Write) -> None:
    """A plan.py that is there is an error, and nothing else is written then."""
    file = write("mine/plan.py", "mine")

    done = ferryman("init", "mine")

    assert done.code == 2
    assert done.err.startswith("error: mine/plan.py already exists")
    assert file.read_text() == "mine"
    assert list(file.parent.iterdir()) == [file]


def test_init_takes_a_documents_folder_as_it_is(ferryman: Ferryman, write: Write) -> None:
    """Your own documents get no samples among them."""
    mine = write("mine/documents/my.txt", "mine")

    assert ferryman("init", "mine").code == 0
    assert list(mine.parent.iterdir()) == [mine]


def test_init_into_a_file_is_refused(ferryman: Ferryman, write: Write) -> None:
    """The name of a file is no folder."""
    write("taken", "")

    done = ferryman("init", "taken")

    assert done.code == 2
    assert done.err.startswith("error: taken is a file")
