"""What destinations over HTTP refuse before they send anything: arguments, servers that are away, and certificates."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ferryman.destinations import Destination, DestinationContext, Guarantee, OpenSearch, Solr, Webhook
from ferryman.errors import PermanentError, PlanError, TransientError
from ferryman.testing.destinations import delivery
from tests.destinations.conftest import TlsServer
from tests.support.receiver import Receiver, closed_port

Build = Callable[..., Destination]
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
