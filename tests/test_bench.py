"""The benchmarks can be run, each of them, and what they make of their figures is right."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from bench import plots, profile, results, retrieval, text, trips
from bench.__main__ import NAMES, TABLE
from bench.harness import ROOT, Measurement, Phases, Row, Sizes, print_table, speed_row, time_row, timed
from bench.judge import Verdict, join_verdicts, judge
from bench.peers import embedding

from tests.steps.corpus import producers

TINY = ["--documents", "400", "--files", "100", "--rounds", "1"]


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_can_be_imported(name: str) -> None:
    assert callable(importlib.import_module(f"bench.{name}").measure)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("name", TABLE)
def test_a_benchmark_of_the_table_runs(name: str, tmp_path: Path) -> None:
    """With few documents: whether a figure is good is not asked, only whether there is one."""
    file = tmp_path / "results.json"
    ran = _run("-m", "bench", name, *TINY, "--folder", str(tmp_path / "data"), "--results", str(file))
    assert ran.returncode in (0, 1), ran.stderr
    assert "failed: " not in ran.stdout, ran.stderr
    assert results.read(file)[name]["rows"]


@pytest.mark.slow
@pytest.mark.spark
def test_a_profile_has_samples_of_driver_and_workers(tmp_path: Path) -> None:
    ran = _run("-m", "bench", "profile", "null", "--documents", "20000", "--folder", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    for kind in ("### driver", "### worker", "### JVM"):
        assert kind in ran.stdout


def test_a_ratio_is_the_median_of_the_pairs() -> None:
    """Each run beside the one that was made at its side; the spread is of all pairs."""
    ours = Measurement(2.0, 4.0, runs=(Measurement(1.0, 4.0), Measurement(2.0, 4.0), Measurement(4.0, 4.0)))
    beside = Measurement(2.0, 2.0, runs=(Measurement(2.0, 2.0), Measurement(2.0, 2.0), Measurement(2.0, 2.0)))
    fast = speed_row("", 100, ours, beside, 1.0, "line")
    assert (fast.ratio, fast.met) == ("1.00× (0.50–2.00; CPU 0.50×)", True)
    assert fast.figures is not None
    assert fast.figures[:5] == ("line", 1.0, 0.5, 2.0, 0.5)
    long = time_row("", 100, ours, beside, 0.9, "line")
    assert (long.ratio, long.met) == ("1.00× (0.50–2.00; CPU 2.00×)", False)
    assert long.figures == fast.figures, "speeds, however the row shows them"


def test_the_phases_of_a_run_and_the_rest_add_up_to_its_time() -> None:
    def work() -> None:
        watch = Phases()
        for name in ("scan", "transform", "scan"):
            watch.phase(1, name)
        watch.finished({})

    took = timed(work)
    assert set(took.phases) == {"scan", "transform", "rest"}
    assert sum(took.phases.values()) == pytest.approx(took.wall_s)


def test_a_command_is_measured_with_what_outlives_it() -> None:
    """A child that goes on after its parent has ended is in the CPU time, and ended when the command is measured."""
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}], start_new_session=True)"
    assert float(_measured(parent).stdout) >= 0.3


def test_a_command_that_fails_ends_the_benchmark() -> None:
    assert "ended with 7" in _measured("raise SystemExit(7)").stderr


def _measured(program: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: who measures commands adopts orphans, and never gives that up."""
    of = f"print(command([sys.executable, '-c', {program!r}]).cpu_s)"
    return _run("-c", f"import sys; from bench.command import command; {of}")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], check=False, cwd=ROOT, capture_output=True, text=True)


def test_results_are_kept_by_benchmark_and_become_pictures(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    took, beside = (
        Measurement(2.0, 2.0, {"driver": 100}, {"scan": 1.5, "deliver": 0.3, "rest": 0.2}),
        Measurement(1.0, 1.0),
    )
    for target in (1.0, 2.0):  # the second one takes the place of the first
        results.save(
            "null", [speed_row("what", 10, took, beside, target, "into Null"), Row(*"abcde", True)], Sizes(), file
        )
    [row, other] = results.read(file)["null"]["rows"]
    assert (row["target"], other["figures"]) == ("≥ 2×", None)
    assert [kept.target for kept in results.rows(file)] == ["≥ 2×", "e"]
    found = results.figures(file)
    assert plots.speeds(found) == [["into Null", 0.5, 0.5, 0.5]]
    assert plots.phases(found) == [["into Null", [1.5, 0, 0, 0.3, 0, 0.2]]]


def test_growth_is_drawn_by_kind_of_run() -> None:
    figures = {"documents": 100, "seconds": 2.0, "mb": {"driver": 1, "worker": 2, "jvm": 3}, "phases": {}}
    found = [{"key": f"growth: {kind}", **figures} for kind in ("new", "unchanged")]
    assert plots.growth(found) == {kind: [[100, 50.0, 1, 2, 3]] for kind in ("new", "unchanged")}
    assert plots.speeds(found) == []


def test_samples_are_read_by_process_and_counted_by_function(tmp_path: Path) -> None:
    raw = tmp_path / "samples"
    raw.write_text(
        'process 1:"python -m bench";run (run.py);wait (x.py) 3\n'
        'process 1:"python -m bench";run (run.py) 1\n'
        'process 1:"python";process 2:"java -Da=b";process 3:"python -m pyspark.daemon";work (w.py);work (w.py) 2\n'
    )
    stacks = profile.read(raw)
    assert stacks["worker"] == Counter({("work (w.py)", "work (w.py)"): 2})
    alone, within = profile.shares(stacks["driver"])
    assert alone == [("wait (x.py)", 0.75), ("run (run.py)", 0.25)]
    assert within == [("run (run.py)", 1.0), ("wait (x.py)", 0.75)]
    assert profile.shares(stacks["worker"])[1] == [("work (w.py)", 1.0)], "once, however deep it is in itself"


def test_the_table_is_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([Row("a", "b", "c", "d", "e", False, "f")])
    assert capsys.readouterr().out.splitlines()[-1] == "| a | b | c | d | e | **no** | f |"


def test_figures_can_be_written_as_json(tmp_path: Path) -> None:
    """Mappings that cannot be changed are no dict for json."""
    results.save("one", [speed_row("", 1, Measurement(1, 1), Measurement(1, 1), 1, "one")], Sizes(), tmp_path / "file")
    assert json.loads((tmp_path / "file").read_text())["one"]["rows"][0]["figures"]["mb"] == {}


def test_text_is_compared_by_words() -> None:
    """Marks and blanks make no difference; what fields have is neither wanted nor wrong."""
    sample = producers.Sample("a.eml", "A", b"", "The ferry 東京", head="Sailing")
    assert text.compare(sample, "# The **ferry**\t東\n京") == (10, 0, 0)
    assert text.compare(sample, "Sailing: The boat 京") == (4, 6, 4)


def test_the_judge_names_all_that_is_wrong() -> None:
    """An id is wrong for each of its reasons: what is there twice may be stale, too."""
    truth = {"same": "1", "old": "2", "gone": "3", "twice": "4", "both": "5"}
    rows = [("same", "1"), ("old", "1"), ("twice", "4"), ("twice", "3"), ("both", "4"), ("both", "4"), ("extra", "6")]
    found = judge(truth, rows)
    assert found == Verdict(missing=1, stale=2, doubled=2, not_deleted=1)
    assert str(found) == "1 missing, 2 stale, 2 doubled, 1 not deleted"
    assert not found.right


def test_the_judge_finds_nothing_wrong_with_the_truth() -> None:
    found = judge({"a": "1", "b": ""}, [("b", ""), ("a", "1")])
    assert found.right
    assert str(found) == "right"
    assert judge({"b": ""}, [("b", None)]).stale == 1, "no text is not an empty one"


def test_rounds_that_agree_have_one_verdict() -> None:
    assert join_verdicts([Verdict(), Verdict()]) == "right"
    assert join_verdicts([Verdict(), Verdict(stale=2)]) == "right / 2 stale"


def test_a_table_that_changes_knows_what_is_true(tmp_path: Path) -> None:
    """The judge finds all that a program left out which did not run after the change."""
    catalog = trips.Catalog(tmp_path / "trip", 1000)
    before = list(catalog.truth.items())
    assert judge(catalog.truth, before).right
    catalog.change()
    assert judge(catalog.truth, before) == Verdict(stale=10)
    catalog.delete()
    assert judge(catalog.truth, before).not_deleted == 10
    catalog.change_all()
    everything = pq.read_table(catalog.rows)
    rows = list(zip(everything["id"].to_pylist(), everything["body"].to_pylist(), strict=True))
    assert judge(catalog.truth, rows).right
    assert all(body.startswith(catalog.mark) for _, body in rows)
    assert judge(catalog.truth, before) == Verdict(missing=10, stale=980, not_deleted=20)


def test_a_feed_has_each_change_and_each_delete(tmp_path: Path) -> None:
    catalog = trips.Catalog(tmp_path / "trip", 1000)
    catalog.change()
    catalog.delete()
    catalog.change_all()
    found: dict[str, str] = {}
    for file in sorted(catalog.feed.iterdir()):
        for row in pq.read_table(file).to_pylist():
            if row["deleted"]:
                del found[row["id"]]
            else:
                found[row["id"]] = row["body"]
    assert judge(catalog.truth, found.items()).right


def test_a_trip_that_is_wrong_anywhere_does_not_meet_its_target() -> None:
    right, wrong = (trips.Stage(Measurement(1, 1), str(v), v.right) for v in (Verdict(), Verdict(doubled=3)))
    [first, killed, whole] = trips.rows("x", {"a": [right], "b": [wrong]}, {"a": [wrong], "b": [right]})
    assert (first.met, killed.met, whole.met) == (True, False, False)
    assert (first.ours, first.beside) == ("1.0 s (CPU 1.0 s), right", "1.0 s (CPU 1.0 s), 3 doubled")
    assert whole.ours == "2.0 s (CPU 2.0 s), wrong after 1 of 2"


def test_calls_are_counted_by_text(tmp_path: Path) -> None:
    """A text without an answer was in flight; a line that is not whole was not written."""
    log = tmp_path / "calls"
    assert embedding.read_calls(log) == (0, 0, 0)
    log.write_text("asked a b\nasked c\nanswered a b\nasked a\nanswered a\nasked d")
    assert embedding.read_calls(log) == embedding.Calls(texts=4, requests=3, in_flight=1)


def test_a_request_is_held_once_enough_were_asked_for(tmp_path: Path) -> None:
    """Its texts are in flight then, and it is killed."""
    log = tmp_path / "calls"
    log.write_text("asked a\nanswered a\n")
    program = f"""
import os
from pathlib import Path
from bench.command import command_until
from bench.peers import embedding
log = Path({str(log)!r})
held = {{embedding.LOG: str(log), embedding.HOLD: "30", "PYTHONPATH": "."}}
line = ["{sys.executable}", "-c", "from bench.peers.embedding import embed; embed(['b', 'c'])"]
took, killed = command_until(line, lambda: log.stat().st_size >= 30, held)
print(killed, embedding.read_calls(log))
"""
    ran = _run("-c", program)
    assert ran.stdout.strip() == "True Calls(texts=3, requests=2, in_flight=2)", ran.stderr


def test_pages_know_their_paragraphs(tmp_path: Path) -> None:
    pages = retrieval.Pages(tmp_path / "pages", 200)
    before = dict(pages.truth)
    assert len(before) == 200 * retrieval.PARAGRAPHS
    assert pages.distinct == 200 * (retrieval.PARAGRAPHS - 1) + retrieval.COMMON
    pages.edit()
    assert judge(pages.truth, before.items()) == Verdict(missing=4, not_deleted=2)
    pages.delete()
    left = dict(pages.truth)
    assert len(left) == len(before) + 2 - 2 * retrieval.PARAGRAPHS
    distinct = pages.distinct
    pages.copy()
    assert len(pages.truth) == 2 * len(left)
    assert pages.distinct == distinct


def test_a_command_is_killed_in_time_with_all_below_it(tmp_path: Path) -> None:
    """A command that ends before is not killed."""
    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    program = f"""
import os, sys
from pathlib import Path
from bench.command import command_until
pid = Path({str(tmp_path / "pid")!r})
took, killed = command_until([sys.executable, "-c", {parent!r}], lambda: pid.exists() and pid.read_text() != "")
alive = True
try:
    os.kill(int(pid.read_text()), 0)
except ProcessLookupError:
    alive = False
print(killed, alive, took.cpu_s > 0, command_until([sys.executable, "-c", ""], lambda: False)[1])
"""
    ran = _run("-c", program)
    assert ran.stdout.split() == ["True", "False", "True", "False"], ran.stderr
