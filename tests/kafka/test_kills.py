"""From Kafka through a step to Kafka, killed at each step of a transaction, and at random: readers with
``read_committed`` see what they would have seen without."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ferryman import account, crash
from ferryman.crash import KAFKA
from ferryman.engine.summary import Summary
from ferryman.operations import list_retained, remove_retained
from ferryman.state.state import state_root
from ferryman.verification import verify
from tests.kafka.child import OVERTAKEN, Job, plan_of
from tests.kafka.pipe import MESSAGES, Pipe, ended_well
from tests.servers.kafka import KafkaServer
from tests.support.kafka_topics import Topics
from tests.support.plan_world import Watch, run_plan
from tests.support.tiers import sampled
from tests.support.zygote import Zygote

RANDOM = [p for p in crash.POINTS if p.startswith(("transform", "commit", "wave", "deliver", "settle", "outbox"))]
"""Of the engine's points, those that a run like this passes, or may pass."""


@pytest.mark.rule("kafka.exactly-once")
@pytest.mark.parametrize(
    "point",
    [
        *KAFKA,
        *(
            pytest.param(point, marks=pytest.mark.slow)
            for point in ("kafka.sent:3", "kafka.committed:2", "kafka.fenced:2")
        ),
    ],
)
def test_driver_and_worker_are_killed(zygote: Zygote, topics: Topics, place: Path, point: str) -> None:
    pipe = Pipe(topics, place)
    code, said = zygote.run(**pipe.job, arm=(point, str(place / "killed")))
    assert (code, (place / "killed").exists()) == (-9, True), said
    ended_well(zygote.run(**pipe.job))
    pipe.check()


@pytest.mark.rule("kafka.exactly-once")
@pytest.mark.parametrize("point", sampled(("kafka.sent", "kafka.opened", "kafka.sending", "kafka.committed"), 4))
def test_a_worker_is_killed(zygote: Zygote, topics: Topics, place: Path, point: str) -> None:
    """The run goes on, and another worker takes over the lane."""
    pipe = Pipe(topics, place)
    ended_well(zygote.run(**pipe.job, arm=(point, str(place / "killed")), alone=False))
    assert (place / "killed").exists(), f"{point} was never reached"
    pipe.check()


@pytest.mark.rule("kafka.fenced")
@pytest.mark.parametrize("point", sampled(("kafka.sent", "kafka.opened", "kafka.sending", "kafka.committed"), 4))
def test_a_late_worker_wakes_up(zygote: Zygote, topics: Topics, place: Path, point: str) -> None:
    """Another driver took the state over while it slept, and has delivered everything."""
    pipe = Pipe(topics, place)
    code, said = zygote.run(**pipe.job, arm=(point, str(place / "stopped")), stop=True)
    assert code == -19, said
    ended_well(zygote.run(**pipe.job, stop=True))
    pipe.check()
    assert OVERTAKEN in ended_well(zygote.wake())
    pipe.check()
    pipe.fill(30)
    ended_well(zygote.run(**pipe.job))
    pipe.check()


def test_what_a_killed_plan_leaves_is_removed(zygote: Zygote, topics: Topics, place: Path) -> None:
    """Nobody waits for its transaction any more, and its topic of marks is gone; what was delivered stays."""
    pipe = Pipe(topics, place)
    code, said = zygote.run(**pipe.job, arm=("kafka.sent:3", str(place / "killed")))
    assert code == -9, said
    out = f"{pipe.topic}-out"
    before = topics.read(out)
    assert topics.cluster.open_transactions(out)
    plan = plan_of(Job(**pipe.job))  # type: ignore[arg-type]
    [kept] = list_retained(plan, state=place / "state")
    assert remove_retained(plan, state=place / "state") == [kept]
    assert topics.cluster.open_transactions(out) == {}
    assert topics.read(out) == before
    assert not any(name in kept.place for name in topics.admin.list_topics(timeout=30).topics if "marks" in name)
    assert list_retained(plan, state=place / "state") == remove_retained(plan, state=place / "state") == []


def run_here(pipe: Pipe) -> tuple[Summary, str]:
    observer = Watch()
    plan = plan_of(Job(**pipe.job))  # type: ignore[arg-type]
    summary = run_plan(plan, pipe.place / "state", observer=observer, wave_bytes=100_000)
    return summary, "\n".join(observer.messages)


@pytest.mark.rule("kafka.marks-lost")
def test_marks_that_were_deleted_stop_it(zygote: Zygote, topics: Topics, place: Path) -> None:
    """Rows that an earlier run may have sent are not sent again until somebody has decided that; rows that nobody can
    have sent go on with new marks."""
    pipe = Pipe(topics, place)
    code, said = zygote.run(**pipe.job, arm=("kafka.committed:2", str(place / "killed")))
    assert code == -9, said
    out = f"{pipe.topic}-out"
    before = topics.read(out)
    assert before
    plan = plan_of(Job(**pipe.job))  # type: ignore[arg-type]
    marks = list_retained(plan, state=place / "state")[0].place.split()[1]
    topics.delete(marks)
    summary, said = run_here(pipe)
    assert summary.exit == 4, said
    assert f"deleted topic {marks}" in said
    assert "--config cleanup.policy=compact" in said
    assert topics.read(out) == before
    assert topics.cluster.topic(marks) is None
    known = account.status(state_root(plan, place / "state"), plan)["destinations"]["out"]["delivered"]
    assert known < len(before)

    topics.new(marks, 8, cleanup_policy="compact")
    summary, said = run_here(pipe)
    assert summary.exit == 0, said
    assert len(topics.read(out)) == pipe.written + len(before) - known  # those of which the state did not know go again

    topics.delete(marks)
    pipe.fill(10)
    summary, said = run_here(pipe)
    assert (summary.exit, summary.delivered) == (3, 10), said
    assert "`ferryman verify PLAN --repair`" in said


@pytest.mark.rule("kafka.made-again")
def test_a_topic_that_was_made_again_is_named(topics: Topics, place: Path) -> None:
    """What is new arrives; that the rest is not there is said, and verify has it sent again."""
    pipe = Pipe(topics, place)
    out = f"{pipe.topic}-out"
    assert run_here(pipe)[0].exit == 0
    topics.delete(out)
    topics.new(out, 2)
    pipe.fill(20)
    summary, said = run_here(pipe)
    assert summary.delivered == 20, said
    assert "what was delivered before may not be in it" in said
    assert len(topics.read(out)) == 20
    plan = plan_of(Job(**pipe.job))  # type: ignore[arg-type]
    verify(plan, state=place / "state", repair=True)
    assert run_here(pipe)[0].delivered == MESSAGES
    assert verify(plan, state=place / "state").exit == 0
    summary, said = run_here(pipe)
    assert summary.exit == 0, said
    assert sorted(msgspec.json.decode(r.value or b"")["n"] for r in topics.read(out)) == list(range(pipe.written))


@pytest.mark.parametrize(
    "point",  # a broker starts in ten seconds
    [pytest.param(point, marks=[] if point == "kafka.sent" else [pytest.mark.slow]) for point in KAFKA],
)
def test_the_broker_is_killed(zygote: Zygote, kafka: KafkaServer, topics: Topics, place: Path, point: str) -> None:
    """While a driver or worker is at this point; the run waits for the broker, and goes on."""
    pipe = Pipe(topics, place)
    code, said = zygote.run(**pipe.job, arm=(point, str(place / "stopped")), stop=True)
    assert code == -19, said
    kafka.kill()
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(kafka.start)
        said = ended_well(zygote.wake())
        started.result()
    said += ended_well(zygote.run(**pipe.job))
    pipe.check()


@pytest.mark.rule("kafka.exactly-once")
@pytest.mark.parametrize(
    ("into", "kills", "seed"),
    [
        ("kafka", 2, 1),
        pytest.param("kafka", 50, 2, marks=pytest.mark.slow),
        pytest.param("sqlite", 20, 3, marks=pytest.mark.slow),
        ("opensearch", 3, 4),
        pytest.param("opensearch", 50, 5, marks=pytest.mark.slow),
    ],
)
def test_it_is_killed_at_random(
    zygote: Zygote, topics: Topics, place: Path, server: Callable[[str], Any], into: str, kills: int, seed: int
) -> None:
    """At a crash point or at any time, the driver or a worker, while more is written; then it is left alone."""
    chance = random.Random(seed)
    pipe = Pipe(topics, place, server(into).url if into == "opensearch" else into)
    points = [*RANDOM, *(KAFKA if into == "kafka" else ())] + list(KAFKA if into == "kafka" else ()) * 4
    killed, took = 0, 2.0
    while killed < kills:
        job = dict(pipe.job, slots=chance.choice((1, 2, 3)), alone=chance.random() < 0.6)
        seen = place / f"killed-{killed}-{pipe.written}"
        if by_time := chance.random() < 0.4:
            job |= {"kill_s": chance.uniform(0, took), "alone": True}
        else:
            job["arm"] = (f"{chance.choice(points)}:{chance.choice((1, 1, 2, 3, 5))}", str(seen))
        began = time.monotonic()
        code, said = zygote.run(**job)
        assert code in (0, -9), (job, said)
        killed += code == -9 or seen.exists()
        if code == 0:
            took = time.monotonic() - began if by_time else took
            pipe.check()
            pipe.fill(chance.randint(20, 200))
    ended_well(zygote.run(**pipe.job))
    pipe.check()
    assert "delivered 0" in ended_well(zygote.run(**pipe.job))
