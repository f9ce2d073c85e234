"""Tests of the promises of a destination whose target is a server, when connections break.

    from ferryman.testing.servers import ServerSuite

    class TestMySearch(ServerSuite):
        keyed = True

        def server(self):
            return "127.0.0.1", 9200

        def destination_at(self, folder, host, port):
            return MySearch(f"http://{host}:{port}", index=folder.name)

        def hashes(self, folder):
            return [hit["hash"] for hit in everything_in(folder.name)]

        def stop(self):
            ...

        def start(self):
            ...

All promises of ``DestinationSuite`` hold for a server too, and are tested with it. Only ``server`` and
``destination_at`` are required; a promise that needs a method you do not override is skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest import SkipTest

from ferryman.destinations.base import Delivery, Destination, Outcome
from ferryman.errors import PermanentError, TransientError
from ferryman.testing.destinations import DestinationSuite, delete, delivery
from ferryman.testing.proxy import Proxy, ProxyFault

_RETRY_S: Final = 0.05
"""Seconds between two tries while a server is down."""
_START_S: Final = 600.0
"""Seconds within which a started server must answer: a machine that is busy with other tests may take so long."""


class ServerSuite(DestinationSuite):
    """Base of a test class; extends ``DestinationSuite``. Name the test's index or table after its ``folder``.

    Attributes:
        trigger: bytes in the request that makes a chunk take effect (``b"COMMIT"``), if other requests precede it.
        streams: True if the server begins to work before it has the whole request: after one that breaks off, a part
            of it may be stored until it is sent again.
    """

    trigger = b""
    streams = False

    # --- to override --------------------------------------------------------------------------------------------------

    def server(self) -> tuple[str, int]:
        """Return host and port of the real server, which is running."""
        raise NotImplementedError

    def destination_at(self, folder: Path, host: str, port: int) -> Destination:
        """Return the destination at this address: the server's, or a proxy's."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the server, or kill it: what it confirmed is kept."""
        raise SkipTest("stop() and start() are not overridden")

    def start(self) -> None:
        """Start the server that was stopped, at the same port, and wait until it answers."""
        raise SkipTest("stop() and start() are not overridden")

    def wrong_credentials(self, folder: Path) -> Destination:
        """Return the destination with a password that the server refuses. Set ``secret`` to it."""
        raise SkipTest("wrong_credentials() is not overridden")

    def unfit(self, id: str, sequence: int) -> Delivery:
        """Return an upsert that the target refuses permanently by a rule of its own (a type, a constraint). The target
        of the test's folder exists and is empty."""
        raise SkipTest("unfit() is not overridden")

    def destination(self, folder: Path) -> Destination:
        """Return the destination at the server's address."""
        return self.destination_at(folder, *self.server())

    # --- the promises -------------------------------------------------------------------------------------------------

    def test_a_server_that_is_away_is_waited_for(self, tmp_path: Path) -> None:
        """If nothing listens, ``check`` reports that the whole destination is down for now: universal and transient."""
        with Proxy(*self.server()) as proxy:
            destination = self.destination_at(tmp_path, "127.0.0.1", proxy.port)
        error = _error_of(destination.check)
        assert _is_down(error), f"check() raised {error!r}"
        self._keeps_secret(error)

    def test_a_request_that_is_lost_had_no_effect(self, tmp_path: Path) -> None:
        """The connection breaks before the server has the chunk: nothing is stored, and it can be sent again."""
        for number, fault in enumerate((ProxyFault.DROP_REQUEST, ProxyFault.HALF_REQUEST)):
            chunk = [delivery(f"doc-{number}-{i}", 100 * number + i) for i in range(1, 21)]
            self._breaks(tmp_path, chunk, fault)
            if not (self.streams and fault is ProxyFault.HALF_REQUEST):
                before = [delivery(f"doc-{n}-{i}", 100 * n + i) for n in range(number) for i in range(1, 21)]
                self._holds(tmp_path, before)
            self._again(tmp_path, chunk)
            self._holds(
                tmp_path, [delivery(f"doc-{n}-{i}", 100 * n + i) for n in range(number + 1) for i in range(1, 21)]
            )

    def test_an_answer_that_is_lost_is_no_answer(self, tmp_path: Path) -> None:
        """The connection breaks before or within the answer to a chunk that was stored: the chunk counts neither as
        done nor as refused; sent again, everything is stored once."""
        for number, fault in enumerate((ProxyFault.SWALLOW_ANSWER, ProxyFault.HALF_ANSWER)):
            chunk = [delivery(f"doc-{i}", 100 * number + i) for i in range(1, 21)] + [delete("gone", 100 * number + 50)]
            self._breaks(tmp_path, chunk, fault)
            self._again(tmp_path, chunk)
            self._holds(tmp_path, self._so_far(chunk, number))

    def test_what_came_between_is_not_undone(self, tmp_path: Path) -> None:
        """A chunk whose answer was lost, newer deliveries and deletes of its ids, then the chunk once more: stale."""
        self._needs_comparing(tmp_path)
        chunk = [delivery(f"doc-{i}", i) for i in range(1, 11)]
        newer = [delivery(f"doc-{i}", 100 + i) if i % 2 else delete(f"doc-{i}", 100 + i) for i in range(1, 11)]
        self._breaks(tmp_path, chunk, ProxyFault.SWALLOW_ANSWER)
        assert {o.kind for o in self._write(self.destination(tmp_path), tmp_path, newer)} == {"ok"}
        assert {o.kind for o in self._write(self.destination(tmp_path), tmp_path, chunk)} == {"stale"}
        self._holds(tmp_path, newer)

    def test_a_server_may_restart_in_the_middle(self, tmp_path: Path) -> None:
        """The server restarts while chunks are written: a chunk is done, or the destination is reported down; a chunk
        that is sent until it is done is stored once."""
        self._needs_repeating()
        with ThreadPoolExecutor(1) as pool:
            sent = [self._sent(tmp_path, number) for number in range(10)]
            restart = pool.submit(self._restart)
            while not restart.done():
                sent.append(self._sent(tmp_path, len(sent)))
            restart.result()
        sent += [self._sent(tmp_path, len(sent) + i) for i in range(10)]
        self._holds(tmp_path, [d for chunk in sent for d in chunk])
        self._until_done(tmp_path, sent[0])
        self._holds(tmp_path, [d for chunk in sent for d in chunk])

    def test_wrong_credentials_are_for_a_person(self, tmp_path: Path) -> None:
        """Wrong credentials are a permanent error of the whole destination; no message shows the password."""
        destination = self.wrong_credentials(tmp_path)
        outcomes: list[Outcome] = []

        def use() -> None:
            outcomes.extend(self._write(destination, tmp_path, [delivery("a", 1)]))

        error = _error_of(use)
        reported = [(o.kind == "permanent", o.universal) for o in outcomes]
        if isinstance(error, PermanentError):
            reported = [(True, error.universal)]
        assert reported == [(True, True)], f"it raised {error!r}, it answered {outcomes}"
        self._keeps_secret(error or outcomes)

    def test_what_the_target_refuses_harms_nothing_else(self, tmp_path: Path) -> None:
        """A document that breaks the target's rules is a permanent outcome with its reason, wherever it is in the
        chunk; the others are stored. The same holds if all documents break them."""
        self.destination(tmp_path).check()
        unfit = {0: self.unfit("unfit-0", 1000), 7: self.unfit("unfit-7", 1007), 19: self.unfit("unfit-19", 1019)}
        chunk = [unfit.get(i) or delivery(f"doc-{i}", i + 1) for i in range(20)]
        outcomes = self._write(self.destination(tmp_path), tmp_path, chunk)
        for place, outcome in enumerate(outcomes):
            wanted = "permanent" if place in unfit else "ok"
            assert (outcome.kind, outcome.universal) == (wanted, False), (chunk[place], outcome)
            assert outcome.why or place not in unfit, "it does not say why"
        self._holds(tmp_path, [d for i, d in enumerate(chunk) if i not in unfit])
        alone = self._write(self.destination(tmp_path), tmp_path, list(unfit.values()))
        assert {o.kind for o in alone} == {"permanent"}
        assert len({o.why for o in alone}) == 1, "of the same trouble it says different words"
        self._holds(tmp_path, [d for i, d in enumerate(chunk) if i not in unfit])

    # --- helpers ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _through(self, folder: Path) -> Iterator[tuple[Proxy, Destination]]:
        """Open a proxy and a destination that has used it, so that its connections exist."""
        with Proxy(*self.server()) as proxy:
            destination = self.destination_at(folder, "127.0.0.1", proxy.port)
            destination.check()
            destination.open(self._context(folder))
            destination.write([])
            yield proxy, destination
            destination.close()

    def _breaks(self, folder: Path, chunk: list[Delivery], fault: ProxyFault) -> None:
        """Write a chunk whose connection breaks; assert that the destination reports itself down."""
        self._needs_repeating()
        with self._through(folder) as (proxy, destination):
            proxy.break_next(fault, self.trigger)
            outcomes: list[Outcome] = []

            def write() -> None:
                outcomes.extend(destination.write(chunk))

            error = _error_of(write)
            assert proxy.broken == 1, "the fault was never met: is `trigger` right?"
        for outcome in outcomes:
            assert outcome.kind == "transient", f"after {fault.value} it answered {outcome}"
            assert outcome.universal, f"after {fault.value} it blamed the document: {outcome}"
        assert outcomes or _is_down(error), f"after {fault.value} it raised {error!r}"
        self._keeps_secret(error)

    def _again(self, folder: Path, chunk: list[Delivery]) -> None:
        outcomes = self._write(self.destination(folder), folder, chunk)
        assert {o.kind for o in outcomes} <= {"ok", "stale"}, outcomes

    def _so_far(self, chunk: list[Delivery], number: int) -> list[Delivery]:
        """Return all deliveries that a target must hold after this round; a keyed target only those of the last."""
        if self.keyed or not number:
            return chunk
        first = [delivery(f"doc-{i}", i) for i in range(1, 21)] + [delete("gone", 50)]
        return first + chunk

    def _until_done(self, folder: Path, chunk: list[Delivery]) -> None:
        """Write a chunk until it is confirmed, in a new task each time, as the engine does."""
        deadline = time.monotonic() + _START_S
        while True:
            outcomes: list[Outcome] = []

            def write(into: list[Outcome] = outcomes) -> None:
                into.extend(self._write(self.destination(folder), folder, chunk))

            error = _error_of(write)
            assert error is None or _is_down(error), f"while the server restarts it raised {error!r}"
            bad = next((o for o in outcomes if o.kind not in ("ok", "stale")), None)
            if error is None and bad is None:
                return
            if bad is not None:
                assert bad.kind == "transient", f"while the server restarts it answered {bad}"
                assert bad.universal, f"while the server restarts it blamed the document: {bad}"
            assert time.monotonic() < deadline, f"{_START_S:g} s later it still says {bad or error!r}"
            time.sleep(_RETRY_S)

    def _sent(self, folder: Path, number: int) -> list[Delivery]:
        chunk = [delivery(f"doc-{number}-{i}", 10 * number + i) for i in range(1, 6)]
        self._until_done(folder, chunk)
        return chunk

    def _restart(self) -> None:
        self.stop()
        self.start()

    def _keeps_secret(self, error: object) -> None:
        if self.secret:
            assert self.secret not in f"{error} {error!r}", "the error shows a password"


def _is_down(error: Exception | None) -> bool:
    """Return whether an error means that the whole destination is down for now."""
    if isinstance(error, TransientError):
        return error.universal
    return isinstance(error, ConnectionError | TimeoutError)


def _error_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as e:
        return e
    return None
