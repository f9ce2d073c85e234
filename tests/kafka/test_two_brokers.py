"""Two brokers with all topics on both: one of them is killed, stopped, or loses what it leads while a plan reads and
writes. Readers with ``read_committed`` see what they would have seen without."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ferryman.crash import KAFKA
from tests.kafka.pipe import Pipe, ended_well
from tests.servers.cache import Missing
from tests.servers.kafka import Brokers, KafkaServer
from tests.servers.registry import require
from tests.support.kafka_topics import Topics
from tests.support.waiting import wait_until
from tests.support.zygote import Zygote

pytestmark = [pytest.mark.slow, pytest.mark.server]  # three servers take a minute of CPU

TRANSACTIONS = "__transaction_state"
"""The topic whose only partition is led by the coordinator of all transactions."""


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    try:
        with Brokers() as started:
            Topics(started.url).transaction("the first one").abort_transaction(60)
            yield started
    except Missing as e:
        require(str(e))


@pytest.fixture
def topics(brokers: Brokers) -> Topics:
    made = Topics(brokers.url, replicas=2)
    made.await_in_sync()
    return made


def coordinator(topics: Topics) -> int:
    """The node of the broker that commits transactions."""
    [node] = topics.leaders(TRANSACTIONS).values()
    return node


def lose(topics: Topics, broker: KafkaServer, *names: str, kill: bool = True) -> None:
    """Kill or stop a broker, and wait until the other one leads these topics."""
    broker.kill() if kill else broker.stop()
    wait_until(lambda: {3 - broker.node} == {node for name in names for node in topics.leaders(name).values()})


@pytest.mark.rule("kafka.exactly-once")
@pytest.mark.parametrize("point", KAFKA)
@pytest.mark.parametrize("way", ["killed", "stopped", "elected"])
def test_the_coordinator_and_leaders_move(
    zygote: Zygote, topics: Topics, brokers: Brokers, place: Path, way: str, point: str
) -> None:
    """While a driver or worker is at this point: it goes on where they are now, and so does the next run."""
    pipe = Pipe(topics, place)
    out = f"{pipe.topic}-out"
    broker = brokers.brokers[coordinator(topics)]
    if way == "elected":  # leaders move back to it while it is running
        lose(topics, broker, TRANSACTIONS, out)
        broker.start()
        topics.await_in_sync()
    code, said = zygote.run(**pipe.job, arm=(point, str(place / "stopped")), stop=True)
    assert code == -19, said
    if way == "elected":
        for name in (TRANSACTIONS, out, pipe.topic):
            topics.elect(name)
        assert coordinator(topics) == broker.node
        assert {*topics.leaders(out).values()} == {1, 2}
    else:
        lose(topics, broker, TRANSACTIONS, out, pipe.topic, kill=way == "killed")
    ended_well(zygote.wake())
    pipe.check()
    if not broker.running:
        broker.start()
        topics.await_in_sync()
    pipe.fill(100)
    ended_well(zygote.run(**pipe.job))
    pipe.check()


def restart(broker: KafkaServer, after_s: float, away_s: float, kill: bool) -> None:
    time.sleep(after_s)
    broker.kill() if kill else broker.stop()
    time.sleep(away_s)
    broker.start()


@pytest.mark.rule("kafka.exactly-once")
@pytest.mark.parametrize(("into", "least", "seed"), [("kafka", "1", 1), ("kafka", "2", 2), ("sqlite", "1", 3)], ids=str)
def test_brokers_are_restarted_at_random(
    zygote: Zygote, topics: Topics, brokers: Brokers, place: Path, into: str, least: str, seed: int
) -> None:
    """In each of 25 rounds one of them, for longer or shorter than the other takes to notice, killed or in order; in
    some rounds the driver is killed, too. With two replicas that must be in sync, nothing is written meanwhile."""
    chance = random.Random(seed)
    pipe = Pipe(topics, place, into, min_insync_replicas=least)
    took = 3.0
    for _ in range(25):
        broker = brokers.brokers[chance.choice((1, 2))]
        job = dict(pipe.job, slots=chance.choice((1, 2, 3)), alone=chance.random() < 0.6)
        if kills_driver := chance.random() < 0.3:
            job |= {"kill_s": chance.uniform(0, took), "alone": True}
        with ThreadPoolExecutor(1) as pool:
            after_s, away_s = chance.uniform(0, took), chance.choice((0.0, 1.0, 5.0))
            fault = pool.submit(restart, broker, after_s, away_s, chance.random() < 0.7)
            began = time.monotonic()
            code, said = zygote.run(**job)
            took = max(1.0, min(took, time.monotonic() - began))
            fault.result()
        # For longer than a run waits: the next one goes on.
        is_away = "is not available" in said or "a broker is away" in said
        assert code == 0 or is_away or (kills_driver and code == -9), said
        topics.await_in_sync()
        if chance.random() < 0.5:
            ended_well(zygote.run(**pipe.job))
            pipe.check()
        pipe.fill(chance.randint(50, 300))
    ended_well(zygote.run(**pipe.job))
    pipe.check()


@pytest.mark.rule("kafka.exactly-once")
def test_all_brokers_are_away_at_once(zygote: Zygote, topics: Topics, brokers: Brokers, place: Path) -> None:
    """And their controller: the run waits, and goes on once they are back."""
    pipe = Pipe(topics, place)
    code, said = zygote.run(**pipe.job, arm=("kafka.sent", str(place / "stopped")), stop=True)
    assert code == -19, said
    servers = [brokers.controller, *brokers.brokers.values()]
    for server in servers:
        server.kill()
    with ThreadPoolExecutor(len(servers)) as pool:
        started = [pool.submit(server.start) for server in servers]
        ended_well(zygote.wake())
        for each in started:
            each.result()
    topics.await_in_sync()
    ended_well(zygote.run(**pipe.job))
    pipe.check()
