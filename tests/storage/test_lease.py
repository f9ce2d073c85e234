"""The lock of a state in an object store."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.errors import StateHeld
from ferryman.storage import locks, objects, processes
from ferryman.storage.locks import ObjectLease
from ferryman.storage.objects import ObjectPath
from tests.servers.faulty_s3 import BUCKET, FaultyS3
from tests.support.http_store import HttpStore
from tests.support.in_store import faulty, set_variables

__all__ = ["faulty"]

ROOT = Path(__file__).parents[2]

HOLD = """
import sys, time
from ferryman.storage import objects
from ferryman.storage.locks import ObjectLease
from ferryman.storage.objects import ObjectPath
from tests.support.http_store import HttpStore
objects.set_store_opener(HttpStore)
ObjectLease.take(ObjectPath.parse(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def path(faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[ObjectPath]:
    set_variables(monkeypatch, faulty.settings)
    before = objects.set_store_opener(HttpStore)
    yield ObjectPath(f"s3://{BUCKET}", f"{request.node.name}/lock")
    objects.set_store_opener(before)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at what machine this is gives another one; leases are short."""
    monkeypatch.setattr(processes, "machine_id", lambda: os.urandom(8).hex())
    monkeypatch.setattr(locks, "_POLL_S", 0.02)


@pytest.mark.rule("store.lease")
def test_one_driver(path: ObjectPath) -> None:
    """The second one is told who has it; when it is given up, it is free."""
    first = ObjectLease.take(path)
    with pytest.raises(StateHeld, match=f"{os.getpid()} on {socket.gethostname()}"):
        ObjectLease.take(path)
    first.release()
    ObjectLease.take(path).release()


@pytest.mark.rule("store.lease")
def test_a_holder_that_was_killed_here(path: ObjectPath) -> None:
    """Its lease is free at once."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(StateHeld, match=str(holder.pid)):
        ObjectLease.take(path)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    ObjectLease.take(path).release()


@pytest.mark.rule("store.lease")
@pytest.mark.usefixtures("elsewhere")
def test_a_holder_elsewhere_that_renews(path: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known to live as soon as it renews its lease."""
    monkeypatch.setattr(locks, "HEARTBEAT_S", 0.1)
    first = ObjectLease.take(path)
    with pytest.raises(StateHeld):
        ObjectLease.take(path)
    first.release()


@pytest.mark.rule("store.lease")
@pytest.mark.usefixtures("elsewhere")
def test_a_holder_elsewhere_that_is_silent(path: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease is free when the observer has waited long enough; it notices, and does not take it back."""
    monkeypatch.setattr(locks, "EXPIRES_S", 0.3)
    monkeypatch.setattr(locks, "HEARTBEAT_S", 600.0)
    first = ObjectLease.take(path)
    began = time.monotonic()
    second = ObjectLease.take(path)
    assert time.monotonic() - began >= 0.3
    first.release()
    monkeypatch.setattr(locks, "EXPIRES_S", 60.0)  # a slow machine renews it late
    with pytest.raises(StateHeld):  # it was looked at while another one took it
        _take_while(second, path)
    second.release()


def _take_while(second: ObjectLease, path: ObjectPath) -> None:
    renewing = threading.Timer(0.1, second._renew_now)
    renewing.start()
    ObjectLease.take(path)


@pytest.mark.usefixtures("elsewhere")
def test_taking_over(path: ObjectPath) -> None:
    """An operator who knows better does not wait."""
    ObjectLease.take(path)
    began = time.monotonic()
    ObjectLease.take(path, take_over=True).release()
    assert time.monotonic() - began < locks.EXPIRES_S


@pytest.mark.usefixtures("elsewhere")
def test_two_that_take_an_expired_one(path: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """One gets it."""
    monkeypatch.setattr(locks, "EXPIRES_S", 0.2)
    monkeypatch.setattr(locks, "HEARTBEAT_S", 0.05)
    path.store.put(path.key, b"damaged")
    got: list[ObjectLease] = []
    refused: list[StateHeld] = []

    def take() -> None:
        try:
            got.append(ObjectLease.take(path))
        except StateHeld as e:
            refused.append(e)

    threads = [threading.Thread(target=take) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1
    assert len(refused) == 5
    got[0].release()


def test_a_store_that_is_away_while_it_is_held(
    path: ObjectPath, faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal that fails is tried again; it is given up all the same at the end."""
    monkeypatch.setattr(locks, "HEARTBEAT_S", 0.05)
    held = ObjectLease.take(path)
    faulty.fail(refused=0.5, lost=0.3, seed=3)
    before = path.store.get(path.key)
    while path.store.get(path.key) == before:
        time.sleep(0.05)
    faulty.fail()
    held.release()
    ObjectLease.take(path).release()
