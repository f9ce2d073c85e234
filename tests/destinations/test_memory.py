"""The ``Memory`` destination: a spool that several processes share."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.destinations import Delivery, DestinationContext, Guarantee, Memory
from ferryman.destinations.memory import _FRAME, _file_name, _own_folder
from ferryman.errors import PermanentError
from ferryman.testing.destinations import delete, delivery


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    Memory.clear()


def opened(name: str, guarantee: Guarantee = Guarantee.EXACTLY_ONCE, memory: Memory | None = None) -> Memory:
    memory = Memory() if memory is None else memory
    memory.open(DestinationContext("tests", 1, name, 1, guarantee))
    return memory


def ids(name: str) -> list[str]:
    return [d.id for d in Memory.of(name)]


def spool(name: str) -> Path:
    return Path(_own_folder()) / _file_name(name)


def test_it_keeps_deliveries_by_node_in_the_order_of_arrival() -> None:
    """Each name has its own list of what came, with everything that is in a delivery; unknown names have none."""
    one = Delivery("a", hash="f" * 32, sequence=1, fields={"n": [1]}, raw=b"\x80", route=("x",), attempt=2)
    opened("first").write([one, delivery("b", 2)])
    opened("second").write([delivery("c", 3)])
    opened("first").write([delete("a", 4)])
    assert ids("first") == ["a", "b", "a"]
    assert ids("second") == ["c"]
    assert Memory.of("third") == []
    back = Memory.of("first")[0]
    assert all(getattr(back, name) == getattr(one, name) for name in ("hash", "sequence", "raw", "route", "attempt"))
    assert back.fields == {"n": [1]}


@pytest.mark.rule("guarantee.hash")
def test_exactly_once_keeps_a_hash_once() -> None:
    """Whoever wrote it, and whenever: another object, or the same one before."""
    first, second = opened("node"), opened("node")
    for memory in (first, second, first):
        memory.write([delivery("a", 1), delivery("a", 1), delivery("b", 2)])
    second.write([delivery("c", 3)])
    first.write([delivery("c", 3), delivery("d", 4)])
    assert ids("node") == ["a", "b", "c", "d"]


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])
def test_other_guarantees_show_what_came_twice(guarantee: Guarantee) -> None:
    """A test can see doubles where they are allowed, or where they must not be."""
    memory = opened("node", guarantee)
    memory.write([delivery("a", 1), delivery("a", 1)])
    memory.write([delivery("a", 1)])
    assert ids("node") == ["a", "a", "a"]


def test_a_worker_in_another_process_writes_for_the_driver() -> None:
    """The folder is decided where it is first pickled, and what a worker wrote is there."""
    task = pickle.dumps(Memory())
    script = textwrap.dedent(
        """
        import pickle, sys
        from ferryman.destinations import DestinationContext, Guarantee
        from ferryman.testing.destinations import delivery
        memory = pickle.loads(pickle.loads(sys.stdin.buffer.read()))
        again = pickle.loads(pickle.dumps(memory))
        again.open(DestinationContext("tests", 1, "node", 1, Guarantee.EXACTLY_ONCE))
        again.write([delivery("a", 1)])
        """
    )
    subprocess.run([sys.executable, "-c", script], input=pickle.dumps(task), check=True, timeout=300)
    assert ids("node") == ["a"]


def test_making_one_touches_nothing() -> None:
    """A plan can be built, and ``Memory`` imported, without a file being made."""
    script = "import tempfile; tempfile.mkdtemp = None; from ferryman.destinations import Memory; Memory()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


@pytest.mark.parametrize("torn", [1, _FRAME.size - 1, _FRAME.size, _FRAME.size + 5])
def test_a_torn_chunk_is_cut_off(torn: int) -> None:
    """A writer killed in mid-chunk leaves nothing of it: readers pass over it, the next writer cuts it off."""
    memory = opened("node")
    memory.write([delivery("a", 1)])
    whole = spool("node").read_bytes()
    memory.write([delivery("b", 2)])
    spool("node").write_bytes(spool("node").read_bytes()[: len(whole) + torn])
    assert ids("node") == ["a"]
    opened("node").write([delivery("b", 2)])
    assert ids("node") == ["a", "b"]


def test_a_damaged_last_chunk_is_cut_off() -> None:
    """Its checksum tells."""
    memory = opened("node")
    memory.write([delivery("a", 1)])
    memory.write([delivery("b", 2)])
    content = bytearray(spool("node").read_bytes())
    content[-3] ^= 0xFF
    spool("node").write_bytes(content)
    opened("node").write([delivery("b", 2)])
    assert ids("node") == ["a", "b"]


def test_clear_forgets_also_what_open_writers_know() -> None:
    """After ``clear`` a hash is new again, for a writer that had seen it too."""
    first, other = opened("first"), opened("other")
    first.write([delivery("a", 1)])
    other.write([delivery("b", 2)])
    Memory.clear("first")
    assert (ids("first"), ids("other")) == ([], ["b"])
    first.write([delivery("a", 1), delivery("longer than before", 3)])
    assert ids("first") == ["a", "longer than before"]
    Memory.clear()
    assert (ids("first"), ids("other")) == ([], [])
    Memory.clear("never")


def test_its_folder_goes_with_the_driver() -> None:
    """When the process that made it ends, and not when a forked child does, the files are removed."""
    script = textwrap.dedent(
        """
        import os, sys
        from ferryman.destinations import DestinationContext, Guarantee, Memory
        from ferryman.destinations.memory import _own_folder
        from ferryman.testing.destinations import delivery
        memory = Memory()
        memory.open(DestinationContext("tests", 1, "node", 1, Guarantee.EXACTLY_ONCE))
        child = os.fork()
        if not child:
            memory.write([delivery("a", 1)])
            sys.exit()
        os.waitpid(child, 0)
        assert [d.id for d in Memory.of("node")] == ["a"]
        print(_own_folder())
        """
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, timeout=300, capture_output=True, text=True)
    assert "ferryman-memory-" in done.stdout
    assert not os.path.exists(done.stdout.strip())


def test_a_driver_that_is_gone_is_named(tmp_path: Path) -> None:
    """A worker of a driver that has ended, or runs elsewhere, is told so."""
    memory = Memory()
    memory._folder = str(tmp_path / "gone")
    with pytest.raises(PermanentError, match="one machine only") as caught:
        opened("node", memory=memory).write([delivery("a", 1)])
    assert caught.value.universal
