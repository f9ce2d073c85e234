"""Errors of the connection kind are known by what they are called, whoever raised them."""

from __future__ import annotations

import errno
import socket
import urllib.error
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import requests
import sqlalchemy as sa
import urllib3

from ferryman import limits
from ferryman.net.faults import causes, is_connection_error
from ferryman.sources.folder import Root


def named(module: str, name: str, *bases: type[Exception], **attributes: Any) -> Exception:
    """An error of a library that is not installed here."""
    kind = type(name, bases or (Exception,), {"__module__": module})
    error = kind("away")
    for key, value in attributes.items():
        setattr(error, key, value)
    return error


def raised(call: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is what is tested
        call()
    return caught.value


def operational(orig: BaseException) -> Exception:
    return sa.exc.OperationalError("SELECT 1", {}, orig)


def with_state(sqlstate: str) -> Exception:
    return operational(psycopg.errors.lookup(sqlstate)("said the server"))


def no_server() -> None:
    requests.get("http://127.0.0.1:1/", timeout=1)


def no_pool() -> None:
    urllib3.PoolManager(retries=False).request("GET", "http://127.0.0.1:1/", timeout=1)


def no_database() -> None:
    sa.create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none").connect()


REDIS = type("ConnectionError", (Exception,), {"__module__": "redis.exceptions"})

CONNECTION: dict[str, BaseException] = {
    "refused": ConnectionRefusedError(),
    "reset": ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    "time-out": TimeoutError(),
    "no such host": socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    "status": named("mine", "HttpError", status=503),
    "status_code": named("mine", "HttpError", status_code=429),
    "code": urllib.error.HTTPError("http://x", 502, "Bad Gateway", Message(), None),
    "response": named("mine", "HttpError", response=SimpleNamespace(status_code=504)),
    "requests": raised(no_server),
    "requests time-out": requests.exceptions.ReadTimeout(),
    "urllib3": raised(no_pool),
    "urllib3 read": urllib3.exceptions.ReadTimeoutError(SimpleNamespace(), "/", "late"),  # type: ignore[arg-type]
    "urllib3 broke off": urllib3.exceptions.ProtocolError("Connection aborted"),
    "urllib": urllib.error.URLError(ConnectionRefusedError()),
    "httpx": named("httpx", "ConnectError", type("NetworkError", (Exception,), {"__module__": "httpx"})),
    "httpx time-out": named("httpx", "ReadTimeout", type("TimeoutException", (Exception,), {"__module__": "httpx"})),
    "sqlalchemy, no server": raised(no_database),
    "sqlalchemy, server stops": with_state("57P01"),
    "sqlalchemy, too many": with_state("53300"),
    "sqlalchemy, connection lost": with_state("08006"),
    "sqlalchemy, invalidated": sa.exc.ProgrammingError("x", {}, Exception("y"), connection_invalidated=True),
    "sqlalchemy, pool": sa.exc.TimeoutError("QueuePool limit"),
    "mysql": operational(named("pymysql.err", "OperationalError", args=(2003, "Can't connect"))),
    "psycopg": psycopg.OperationalError("connection failed: Connection refused"),
    "redis": named("redis.exceptions", "BusyLoadingError", REDIS),
    "redis time-out": named("redis.exceptions", "TimeoutError"),
    "opensearch": named("opensearchpy.exceptions", "ConnectionError"),
    "opensearch time-out": named("opensearchpy.exceptions", "ConnectionTimeout"),
    "elasticsearch": named("elastic_transport", "ConnectionTimeout"),
}  # fmt: skip


@pytest.mark.rule("outage.connection")
@pytest.mark.parametrize("error", CONNECTION.values(), ids=CONNECTION)
def test_an_error_of_the_connection_needs_no_words(error: BaseException) -> None:
    """Builtin ones, those with a status of a server in trouble, and those of known libraries."""
    assert is_connection_error(error)


OTHERS: dict[str, BaseException] = {
    "a bug": KeyError("title"),
    "the file": PermissionError(errno.EACCES, "Permission denied"),
    "not found": named("mine", "HttpError", status_code=404),
    "server fault": named("mine", "HttpError", status=500),
    "exit": SystemExit(503),
    "no table": operational(psycopg.errors.lookup("42P01")("no such table")),
    "a wrong password": psycopg.OperationalError('FATAL: password authentication failed for user "x"'),
    "redis, a wrong password": named(
        "redis.exceptions", "AuthenticationError", REDIS
    ),
    "a class of this name": named("mine", "ConnectionTimeout"),
    "duplicate key": sa.exc.IntegrityError("x", {}, Exception("y")),
    "texts as codes": named("mine", "Odd", code="503"),
}  # fmt: skip


@pytest.mark.parametrize("error", OTHERS.values(), ids=OTHERS)
def test_other_errors_are_not(error: BaseException) -> None:
    """Nor is what only looks alike."""
    assert not is_connection_error(error)


def test_sqlite_is_busy_or_wrong() -> None:
    """Another process that holds the database lets go of it; a missing table does not appear."""
    assert is_connection_error(operational(named("sqlite3", "OperationalError", sqlite_errorcode=5)))
    engine = sa.create_engine("sqlite://")
    with engine.connect() as db:
        assert not is_connection_error(raised(lambda: db.execute(sa.text("SELECT * FROM nothing"))))


def test_the_chain_is_followed() -> None:
    """Causes, and what was being handled; not what ``from None`` has cut off. A ring does not hold it up."""

    def wrapping(cause: bool) -> None:
        try:
            raise ConnectionResetError
        except ConnectionResetError as e:
            if cause:
                raise RuntimeError("no answer") from e
            raise KeyError("answer")  # noqa: B904 - the context is what is tested

    def cut_off() -> None:
        try:
            raise ConnectionResetError
        except ConnectionResetError:
            raise RuntimeError("known") from None

    assert is_connection_error(raised(lambda: wrapping(True)))
    assert is_connection_error(raised(lambda: wrapping(False)))
    assert not is_connection_error(raised(cut_off))
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    assert list(causes(one)) == [one, other]
    assert not is_connection_error(one)


@pytest.mark.rule("outage.device")
def test_a_device_that_fails_is_an_outage_where_it_is_read() -> None:
    """In a source's read; in a step the same error may be of any file."""
    for number in (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EHOSTUNREACH, errno.ENODEV):
        assert is_connection_error(OSError(number, "x"), reading=True)
    assert not is_connection_error(OSError(errno.EIO, "x"))
    for number in (errno.EACCES, errno.ENOENT, errno.EISDIR):
        assert not is_connection_error(OSError(number, "x"), reading=True)


@pytest.mark.rule("outage.device")
def test_files_tell_what_the_device_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are for a person; the cause is kept."""
    (tmp_path / "a").write_text("x")

    def failing(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("ferryman.sources.folder.os.read", failing)
    error = raised(lambda: Root(str(tmp_path)).read("a", 100))
    monkeypatch.undo()
    assert is_connection_error(error, reading=True)
    assert not is_connection_error(raised(lambda: Root(str(tmp_path)).read("gone", 100)), reading=True)


def test_an_error_that_raises_when_it_is_asked() -> None:
    """Other people's properties: they say nothing."""

    class Odd(Exception):
        @property
        def response(self) -> Any:
            raise RuntimeError("closed")

        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert not is_connection_error(Odd())
    is_connection_error(operational(Odd()))  # whatever it is taken for, asking does not raise


def test_durations() -> None:
    """As on the command line and in plans."""
    assert [limits.seconds(t) for t in ("60", "90s", "15m", "2h", "1d", "500ms", " .5D ")] == [
        60, 90, 900, 7200, 86_400, 0.5, 43_200
    ]  # fmt: skip
    for text in ("", "d", "1w", "-1s", "1 d 2h", "nan", "inf"):
        with pytest.raises(ValueError, match="give seconds"):
            limits.seconds(text)
