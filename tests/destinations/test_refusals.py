"""What destinations over HTTP refuse before they send anything: arguments, servers that are away, and certificates."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from ferryman import sources
from ferryman.destinations import (
    Cassandra,
    Destination,
    DestinationContext,
    Directory,
    Elasticsearch,
    Guarantee,
    JsonLines,
    Kafka,
    LanceDB,
    Milvus,
    OpenSearch,
    Qdrant,
    Redis,
    Solr,
    Sql,
    Webhook,
)
from ferryman.destinations.sql.search import search
from ferryman.errors import PermanentError, PlanError, TransientError, UsageError
from ferryman.net.cassandra import CassandraServers
from ferryman.storage.objects import ObjectPath
from ferryman.testing.destinations import delivery
from tests.destinations.conftest import TlsServer
from tests.support.receiver import Receiver, Reply, Request, closed_port

Build = Callable[..., Destination]
pytestmark = pytest.mark.every_case

OPEN_SEARCH = {"url": "http://localhost:9200", "index": "plays"}
SOLR = {"url": "http://user:hush@localhost/solr/plays"}
WEBHOOK = {"url": "http://user:hush@127.0.0.1/hook"}

WRONG: list[tuple[Build, dict[str, Any], dict[str, Any], str]] = [
    *(
        (OpenSearch, OPEN_SEARCH, wrong, re.escape(says))
        for wrong, says in (
            ({"url": "localhost:9200"}, "not an http or https URL"),
            ({"index": "Plays"}, "lower-case"),
            ({"index": "a b"}, "without spaces"),
            ({"index": ".plays"}, "begins with"),
            ({"index": ""}, "lower-case"),
            ({"refresh": "soon"}, "True, False or 'wait_for'"),
            ({"auth": ["a", "b"]}, "neither"),
            ({"url": "http://me:pw@localhost", "auth": "key"}, "leave one of them out"),
            ({"mappings": {"title": {"type": "text"}}}, "under 'properties'"),
            ({"mappings": {"mappings": {}}}, "under 'properties'"),
            ({"text": "_ferryman"}, "_ferryman is reserved for Ferryman"),
        )
    ),
    *(
        (Solr, SOLR, wrong, says)
        for wrong, says in (
            ({"url": "localhost:8983/solr/plays"}, "the url is not an http or https URL of a collection"),
            ({"url": "http://localhost/solr/plays?wt=xml"}, "the url is not an http"),
            ({"text": "id"}, "need names of their own"),
            ({"versions": ""}, "versions is empty"),
            ({"commit_within_ms": 0}, "commit_within_ms=0"),
        )
    ),
    *(
        (Webhook, WEBHOOK, wrong, says)
        for wrong, says in (
            ({"url": "ftp://x/hook"}, "the url is not an http or https URL"),
            ({"secret": ""}, "the secret is empty"),
            ({"batch": 0}, "batch=0"),
            ({"timeout_s": 0}, "timeout_s=0"),
            ({"timeout_s": 60}, "timeout_s=60"),
            ({"rate": 0.01}, "rate=0.01"),
            ({"headers": {"Content-Type": "text/plain"}}, "Content-Type is set by Webhook itself"),
        )
    ),
]


@pytest.mark.parametrize(("build", "arguments", "wrong", "says"), WRONG)
def test_arguments_that_cannot_be_meant(
    build: Build, arguments: dict[str, Any], wrong: dict[str, Any], says: str
) -> None:
    """Refused when the plan is made, with the reason, without a password in the text."""
    with pytest.raises(PlanError, match=says) as caught:
        build(**{**arguments, **wrong})
    assert not re.search("me:pw|hush", str(caught.value))


SECRET = "s3cr3t-t0ken"
UNFIT = [f"{SECRET}\r\nx: 1", f"{SECRET}\0", f"{SECRET}\x7f", f"{SECRET}€", f"{SECRET}\ud800"]
WITH_TOKEN: dict[str, Callable[[str], Destination]] = {
    "OpenSearch": lambda token: OpenSearch("http://localhost:9200", "plays", auth=token),
    "Solr": lambda token: Solr("http://localhost:8983/solr/plays", auth=token),
    "Webhook": lambda token: Webhook("http://localhost/hook", headers={"x-token": token}),
}
ANY_WITH_TOKEN: dict[str, Callable[[str], object]] = {
    **WITH_TOKEN,
    "Elasticsearch": lambda token: Elasticsearch("http://localhost:9200", "plays", auth=token),
    "Qdrant": lambda token: Qdrant("http://localhost", "plays", vectors={"v": 3}, api_key=token),
    "Milvus": lambda token: Milvus("http://localhost", "plays", vectors={"v": 3}, token=token),
    "sources.OpenSearch": lambda token: sources.OpenSearch("http://localhost:9200", "plays", auth=token),
    "sources.Solr": lambda token: sources.Solr("http://localhost:8983/solr/plays", auth=token),
    "Site": lambda token: sources.Site("http://localhost/", auth=token),
    "Site, a header": lambda token: sources.Site("http://localhost/", headers={"x-token": token}),
    "Git": lambda token: sources.Git("http://localhost/a.git", auth=token),
}


@pytest.mark.parametrize("token", UNFIT, ids=ascii)
@pytest.mark.parametrize("build", ANY_WITH_TOKEN.values(), ids=[*ANY_WITH_TOKEN])
def test_a_value_that_no_header_may_have(build: Callable[[str], object], token: str) -> None:
    """Refused when the plan is made, by the argument's name, and never shown."""
    with pytest.raises(UsageError, match=r"(auth=|token=|api_key=|the value of x-token) holds") as caught:
        build(token)
    assert SECRET not in f"{caught.value} {caught.value!r}"


def test_a_header_that_cannot_be_one() -> None:
    with pytest.raises(PlanError, match="'x token' is not the name of a header"):
        Webhook("http://localhost/hook", headers={"x token": "a"})


@pytest.mark.parametrize("password", [f"{SECRET}\nx", f"{SECRET}\0", f"{SECRET}\ud800"])
def test_a_password_that_cannot_be_sent(password: str) -> None:
    """With a line break in it, or half a character."""
    for build in (
        partial(OpenSearch, "http://h", "i"),
        partial(Solr, "http://h/solr/i"),
        partial(sources.Site, "http://h/"),
        partial(sources.Git, "http://h/a.git"),
    ):
        with pytest.raises(UsageError, match=r"auth= holds (a line break|half a character)") as caught:
            build(auth=("me", password))
        assert SECRET not in str(caught.value)


def test_a_token_as_a_file_has_it() -> None:
    """With its line break; also a password."""
    assert OpenSearch("http://h", "i", auth=f"{SECRET}\n").auth == SECRET
    assert Solr("http://h/solr/i", auth=f" Bearer {SECRET}\r\n").auth == f"Bearer {SECRET}"
    assert Solr("http://h/solr/i", auth=("me\n", f" {SECRET}\n")).auth == ("me", f" {SECRET}")
    with Receiver() as receiver:
        hook = Webhook(receiver.url, headers={"authorization": f"Bearer {SECRET}\n"})
        hook.open(DestinationContext("tests", 1, "node", 1, Guarantee.AT_MOST_ONCE))
        hook.write([delivery("a", 1)])
        assert receiver.requests[0].headers["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize("build", WITH_TOKEN.values(), ids=[*WITH_TOKEN])
def test_a_variable_that_no_header_may_have(
    build: Callable[[str], Destination], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the environment of driver and workers only, so it is refused there; nothing is sent."""
    monkeypatch.setenv("TOKEN", f"{SECRET}€")
    made = build("Bearer ${TOKEN}")
    context = DestinationContext("tests", 1, "node", 1, Guarantee.AT_MOST_ONCE)
    for call in (made.check, lambda: made.open(context)):
        with pytest.raises(PermanentError, match="holds a character beyond Latin-1") as caught:
            call()
        assert caught.value.universal
        assert SECRET not in str(caught.value)


UNCLEAR = ("p/w", "p#w", "p?w", "p@w", "12/34", "/w", "99999999/w", "xq7@xq8/w", "xq7@xq8.xq9?w", "a@b#w")
WITH_URL: dict[str, Callable[[str], object]] = {
    "OpenSearch": lambda login: OpenSearch(f"https://{login}@search:9200", "plays"),
    "Solr": lambda login: Solr(f"http://{login}@solr:8983/solr/plays"),
    "Webhook": lambda login: Webhook(f"https://{login}@example.org/hook"),
    "Sql": lambda login: Sql(f"postgresql://{login}@db.example.org/plays"),
    "Redis": lambda login: Redis(f"redis://{login}@cache:6379/0"),
    "Qdrant": lambda login: Qdrant(f"https://{login}@search:6333", "plays", vectors={"v": 3}),
    "LanceDB": lambda login: LanceDB(f"s3://{login}@bucket/plays", vectors={"v": 3}),
    "Directory": lambda login: Directory(f"sftp://{login}@host/folder"),
    "Directory in a store": lambda login: Directory(f"s3://{login}@bucket/folder"),
    "JsonLines": lambda login: JsonLines(f"ftp://{login}@host/folder"),
    "sources.OpenSearch": lambda login: sources.OpenSearch(f"https://{login}@search:9200", "plays"),
    "Site": lambda login: sources.Site(f"https://{login}@example.org/"),
    "Git": lambda login: sources.Git(f"https://{login}@example.org/a.git"),
    "PostgresChanges": lambda login: sources.PostgresChanges(f"postgresql://{login}@db:5432/plays", tables="a"),
    "a mirror in Cassandra": lambda login: CassandraServers.from_url(f"cassandra://{login}@db-1,db-2/keyspace"),
    "sources.Sql": lambda login: sources.Sql(f"postgresql://{login}@localhost:5432/plays", "SELECT 1", id="id"),
    "Files": lambda login: sources.Files(f"ftp://{login}@host/folder"),
    "Csv": lambda login: sources.Csv(f"zip://a.csv::ftp://{login}@host/a.zip"),
    "search": lambda login: search(f"postgresql://{login}@db.example.org/plays", "henry"),
}


@pytest.mark.parametrize("password", UNCLEAR)
@pytest.mark.parametrize("build", WITH_URL.values(), ids=[*WITH_URL])
def test_a_password_that_is_not_percent_encoded(build: Callable[[str], object], password: str) -> None:
    """A part of it would be taken for the host or the path, and shown."""
    with pytest.raises(UsageError, match=r"percent-encode @ / # \? in the password") as caught:
        build(f"me:{password}")
    shown = str(caught.value).replace("percent-encode @ / # ? in the password", "")
    assert not any(part in shown for part in re.split("[/#?@]", password) if len(part) > 1)
    assert password not in shown


@pytest.mark.parametrize(
    "url",
    [
        "http://api:8080/v1/@scope/hook",
        "https://hooks.example.org:8443/users/me@example.org",
        "https://hooks.example.org/x?to=me@example.org",
        "https://hooks:443/x?to=me@example.org",
        "http://me:p%2Fw%40@hooks:443/x",
        "http://[::1]:8080/a@b.c",
        "http://me:${PASSWORD}@hooks:443/x",
        "http://me@hooks:443/a@b",
        "http://me:p%40w@hooks:443/a%40b",
    ],
)
def test_a_url_that_can_be_read_in_one_way(url: str) -> None:
    assert Webhook(url).url == url


WITH_HOSTS: dict[str, Callable[[str], object]] = {
    "Kafka": lambda hosts: Kafka(hosts, "plays"),
    "sources.Kafka": lambda hosts: sources.Kafka(hosts, "plays"),
    "Cassandra": lambda hosts: Cassandra(hosts, "plays", "documents"),
    "a mailbox": sources.Mailbox,
    "a state": ObjectPath.parse,
}


@pytest.mark.parametrize("password", UNCLEAR)
@pytest.mark.parametrize("build", WITH_HOSTS.values(), ids=[*WITH_HOSTS])
def test_a_login_where_none_belongs(build: Callable[[str], object], password: str) -> None:
    """It is refused, and not shown."""
    with pytest.raises(UsageError) as caught:
        build(f"ftp://me:{password}@host:9092")
    assert not any(part in str(caught.value) for part in re.split("[/#?@]", password) if len(part) > 1)


def test_a_variable_that_makes_a_url_unclear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_PASSWORD", f"{SECRET}/w")
    with pytest.raises(PermanentError, match="percent-encode") as caught:
        Webhook("http://me:${HOOK_PASSWORD}@example.org/hook").check()
    assert SECRET not in str(caught.value)


OVER_HTTP: dict[str, Callable[..., Destination]] = {
    "OpenSearch": lambda url, **options: OpenSearch(url, "plays", **options),
    "Solr": lambda url, **options: Solr(f"{url}/solr/plays", **options),
    "Webhook": lambda url, **options: Webhook(f"{url}/hook", **options),
}
each = pytest.mark.parametrize("build", OVER_HTTP.values(), ids=[*OVER_HTTP])


@each
def test_a_server_that_is_not_there(build: Build) -> None:
    """Within a write too it is certain that nothing was sent; Solr, which is asked first, raises it."""
    with closed_port() as port:
        writer = build(f"http://127.0.0.1:{port}")
        with pytest.raises(TransientError, match="Connection refused") as caught:
            writer.check()
        assert caught.value.universal
        writer.open(DestinationContext("tests", 1, "node", 1, Guarantee.AT_MOST_ONCE))
        if isinstance(writer, Solr):
            with pytest.raises(TransientError, match="Connection refused"):
                writer.write([delivery("a", 1)])
        else:
            [outcome] = writer.write([delivery("a", 1)])
            assert (outcome.kind, outcome.universal) == ("transient", True)


@each
def test_a_certificate_that_nobody_vouches_for(build: Build, tls_server: TlsServer) -> None:
    """Nothing is sent; a person must say whom to trust."""
    with Receiver(tls=tls_server.context) as receiver:
        url = receiver.url.removesuffix("/hook")
        with pytest.raises(PermanentError, match=r"its certificate is refused: .*Give its authority: ca=") as caught:
            build(url).check()
        assert caught.value.universal
        assert receiver.requests == []


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (OVER_HTTP["OpenSearch"], {"auth": ("me", "${PASSWORD}")}),
        (OVER_HTTP["Solr"], {"auth": ("me", "${PASSWORD}")}),
        (OVER_HTTP["Webhook"], {"secret": "${PASSWORD}"}),
    ],
    ids=[*OVER_HTTP],
)
@pytest.mark.parametrize(("value", "says"), [(None, "is not set"), (" ", "is not set"), ("a\nb", "holds a line break")])
def test_a_variable_that_is_missing_is_told_by_name(
    build: Build, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, value: str | None, says: str
) -> None:
    """Before anything is sent, in driver and worker; it is for a person to mend."""
    monkeypatch.delenv("PASSWORD", raising=False)
    if value is not None:
        monkeypatch.setenv("PASSWORD", value)
    with Receiver() as receiver:
        made = build(receiver.url.removesuffix("/hook"), **options)
        context = DestinationContext("tests", 1, "node", 1, Guarantee.AT_MOST_ONCE)
        for call in (made.check, lambda: made.open(context)):
            with pytest.raises(PermanentError, match=f"variable PASSWORD {says}") as caught:
                call()
            assert caught.value.universal
        assert receiver.requests == []


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("waits_s", [1, 10_000])
@each
def test_a_server_that_asks_to_wait(build: Build, status: int, waits_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few seconds are waited for within the write; longer, and the destination is away, with what it asked for."""
    waited: list[float] = []
    clock = SimpleNamespace(sleep=waited.append, monotonic=time.monotonic)  # threads of other tests sleep, too
    monkeypatch.setattr("ferryman.net.http.time", clock)

    def answer(request: Request) -> Reply:
        if not waited and ("_bulk" in request.path or "update" in request.path or request.path == "/hook"):
            return Reply(status, headers={"retry-after": str(waits_s)})
        if "_bulk" in request.path:
            return Reply(body=b'{"errors": false, "items": [{"index": {"status": 201}}]}')
        return Reply(body=b'{"response": {"docs": []}, "adds": ["a", 1]}')

    with Receiver(answer) as receiver:
        writer = build(receiver.url.removesuffix("/hook"))
        writer.open(DestinationContext("tests", 1, "node", 1, Guarantee.AT_MOST_ONCE))
        if waits_s == 1:
            assert [outcome.kind for outcome in writer.write([delivery("a", 1)])] == ["ok"]
            assert waited == [1.0]
        elif isinstance(writer, Solr):
            with pytest.raises(TransientError, match="asks to wait 10000 s"):
                writer.write([delivery("a", 1)])
        else:
            [outcome] = writer.write([delivery("a", 1)])
            assert (outcome.kind, outcome.universal) == ("transient", True)
            assert "asks to wait 10000 s" in outcome.why
        assert waited == ([1.0] if waits_s == 1 else [])
