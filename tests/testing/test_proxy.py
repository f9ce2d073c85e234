"""The proxy that breaks connections breaks just what it was told to."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ferryman.testing.proxy import Proxy, ProxyFault


class Echo:
    """A server that answers each line with ``did <line>``; ``lines`` is what it has seen."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rw") as file:
            for line in file:
                if line.endswith("\n"):
                    self.lines.append(line.strip())
                    file.write(f"did {line}")
                    file.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a test has closed it
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", echo.port, delay_s=0.3) as made:
        yield made


def ask(proxy: Proxy, line: str) -> str:
    """What comes back until the answer or the connection ends; "reset" if that is how."""
    answer = b""
    try:  # all of it: the connection may be gone before we have said a word
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=300) as connection:
            connection.sendall(f"{line}\n".encode())
            while not answer.endswith(b"\n") and (data := connection.recv(4096)):
                answer += data
    except (ConnectionResetError, BrokenPipeError):
        return "reset"
    return answer.decode()


def test_it_passes_on(proxy: Proxy, echo: Echo) -> None:
    """Where nothing is to be broken, both sides see what the other sent."""
    assert ask(proxy, "one") == "did one\n"
    assert (echo.lines, proxy.broken, proxy.connections) == (["one"], 0, 1)


@pytest.mark.parametrize(
    ("fault", "answer", "seen"),
    [
        (ProxyFault.DROP_REQUEST, ("", "reset"), []),
        (ProxyFault.HALF_REQUEST, ("", "reset"), []),
        (ProxyFault.SWALLOW_ANSWER, ("", "reset"), ["a line"]),
        (ProxyFault.HALF_ANSWER, ("did a",), ["a line"]),
        (ProxyFault.DELAY_ANSWER, ("did a line\n",), ["a line"]),
    ],
)
def test_one_request_meets_the_fault(
    proxy: Proxy, echo: Echo, fault: ProxyFault, answer: tuple[str, ...], seen: list[str]
) -> None:
    """The server has seen what the fault says; the next request goes through."""
    proxy.break_next(fault)
    began = time.monotonic()
    assert ask(proxy, "a line") in answer
    assert (time.monotonic() - began >= proxy.delay_s) == (fault is ProxyFault.DELAY_ANSWER)
    assert echo.lines == seen
    assert proxy.broken == 1
    assert ask(proxy, "again") == "did again\n"
    assert proxy.broken == 1


def test_a_fault_waits_for_its_request(proxy: Proxy) -> None:
    """With ``containing``, other requests pass; faults are met in the order they were asked for."""
    proxy.break_next(ProxyFault.HALF_ANSWER, b"COMMIT")
    proxy.break_next(ProxyFault.SWALLOW_ANSWER)
    assert ask(proxy, "BEGIN") == "did BEGIN\n"
    assert ask(proxy, "COMMIT") == "did C"
    assert ask(proxy, "BEGIN") in ("", "reset")


def test_a_server_that_is_away_is_a_broken_connection(proxy: Proxy, echo: Echo) -> None:
    """The proxy stays where it is while the server restarts."""
    echo.close()
    assert ask(proxy, "one") in ("", "reset")
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", echo.port), timeout=300)


def test_after_close_nobody_listens(proxy: Proxy) -> None:
    proxy.close()
    with pytest.raises(ConnectionError):
        ask(proxy, "one")
