"""What is special about ``Redis``: its three kinds of values, memory, persistence, errors."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from ferryman.destinations import Delivery, DestinationContext, Guarantee, Outcome, Redis
from ferryman.errors import DeliveryError, Misconfigured, PlanError, Unavailable
from ferryman.testing.destinations import delete, delivery
from tests.servers.redis import PASSWORD, RedisServer

OK, STALE = Outcome.ok(), Outcome.stale()
CONTEXT = DestinationContext("tests", 1, "node", 1, Guarantee.EXACTLY_ONCE)
_numbers = itertools.count(1)


@pytest.fixture
def real(server: Callable[[str], Any]) -> RedisServer:
    found: RedisServer = server("redis")
    return found


@pytest.fixture
def client(real: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=real.port, password=PASSWORD, decode_responses=True) as made:
        yield made


@pytest.fixture
def prefix() -> str:
    """This test's own."""
    return f"test{next(_numbers)}:"


def opened(made: Redis) -> Redis:
    made.check()
    made.open(CONTEXT)
    return made


def one(**fields: Any) -> Delivery:
    return Delivery(
        "a.txt#2",
        hash="f" * 32,
        sequence=2**52 + 1,
        fields=fields,
        raw="Brontë 👩‍👧 \0".encode(),
        version="e" * 32,
        source="files",
        parent_id="a.txt#1",
        origin_id="a.txt",
        route=("left",),
    )


def test_a_hash_has_fields_as_text_and_the_rest_as_json(real: RedisServer, client: Any, prefix: str) -> None:
    """A shorter version leaves no field of the longer one."""
    target = opened(Redis(real.url, prefix))
    assert target.write([one(title="Henry", year=1599, tags=[1, None], fair=True, none=None)]) == [OK]
    found = client.hgetall(f"{prefix}a.txt#2")
    about = json.loads(found.pop("_ferryman"))
    assert found == {
        "title": "Henry", "year": "1599", "tags": "[1,null]", "fair": "true", "none": "null", "text": "Brontë 👩‍👧 \0",
    }  # fmt: skip
    assert (about["sequence"], about["parent"], about["origin"], about["route"]) == (
        2**52 + 1,
        "a.txt#1",
        "a.txt",
        ["left"],
    )
    hit = target.lookup("a.txt#2")
    assert hit is not None
    assert (hit.fields["title"], hit.fields["year"], hit.text) == ("Henry", "1599", "Brontë 👩‍👧 \0")
    assert target.lookup("a") is None
    assert target.lookup("\ud800") is None
    shorter = Delivery("a.txt#2", "e" * 32, 2**52 + 2, fields={"text": "of a step"}, raw=b"content")
    assert target.write([shorter]) == [OK]
    assert client.hgetall(f"{prefix}a.txt#2").keys() == {"text", "_ferryman"}
    assert client.hget(f"{prefix}a.txt#2", "text") == "of a step"
    assert target.write([delete("a.txt#2", 2**52 + 3)]) == [OK]
    assert not client.exists(f"{prefix}a.txt#2")
    target.close()


def test_many_fields(real: RedisServer, client: Any, prefix: str) -> None:
    """More than a call of Lua takes arguments."""
    target = opened(Redis(real.url, prefix))
    assert target.write([delivery("a", 1, fields={f"field-{n}": n for n in range(20_001)})]) == [OK]
    assert client.hlen(f"{prefix}a") == 20_003
    assert [each.intact for each in target.inventory(CONTEXT)] == [True]
    target.close()


def test_json_has_the_whole_delivery(real: RedisServer, client: Any, prefix: str) -> None:
    target = opened(Redis(real.url, prefix, "json"))
    assert target.write([one(title="Henry", year=1599)]) == [OK]
    found = json.loads(client.get(f"{prefix}a.txt#2"))
    assert (found["id"], found["fields"], found["route"]) == ("a.txt#2", {"title": "Henry", "year": 1599}, ["left"])
    hit = target.lookup("a.txt#2")
    assert hit is not None
    assert (hit.fields, hit.text) == ({"title": "Henry", "year": 1599}, "Brontë 👩‍👧 \0")
    target.close()


def test_a_sorted_set_has_members_and_scores(real: RedisServer, client: Any, prefix: str) -> None:
    """Replaced whole; an empty one has no key, and is there all the same."""
    target = opened(Redis(real.url, prefix, "sorted_set", scores="documents"))
    chunk = [delivery("whale", 1, fields={"documents": {"moby": 1685, "jonah": 2.5}}), delivery("none", 2)]
    wrong: list[Any] = [{"a": "many"}, {"a": True}, ["a", 1], {"a": 10**400}, "text"]
    chunk += [delivery(f"wrong-{n}", 10 + n, fields={"documents": value}) for n, value in enumerate(wrong)]
    outcomes = target.write(chunk)
    assert [outcome.kind for outcome in outcomes] == ["ok", "ok", *["permanent"] * len(wrong)]
    assert client.zrange(f"{prefix}whale", 0, -1, withscores=True) == [("jonah", 2.5), ("moby", 1685.0)]
    assert {each.id: each.intact for each in target.inventory(CONTEXT)} == {"whale": True, "none": True}
    hit = target.lookup("whale")
    assert hit is not None
    assert hit.fields == {"documents": {"jonah": 2.5, "moby": 1685.0}}
    assert target.write([delivery("whale", 30, fields={"documents": {"ahab": 1}})]) == [OK]
    assert client.zrange(f"{prefix}whale", 0, -1) == ["ahab"]
    client.zincrby(f"{prefix}whale", 1, "ahab")
    assert {each.id: each.intact for each in target.inventory(CONTEXT)} == {"whale": False, "none": True}
    target.close()


def test_what_was_changed_or_lost_is_seen(real: RedisServer, client: Any, prefix: str) -> None:
    """And comes back if it is sent again under a higher sequence, with the same hash."""
    target = opened(Redis(real.url, prefix))
    chunk = [delivery(id, n, fields={"title": id}) for n, id in enumerate("abcd", 1)]
    assert target.write(chunk) == [OK] * 4
    client.hset(f"{prefix}a", "title", "other")
    client.delete(f"{prefix}b", f"{prefix}c")
    client.set(f"{prefix}c", "of somebody else")
    found = {each.id: each.intact for each in target.inventory(CONTEXT)}
    assert found == {"a": False, "c": False, "d": True}
    assert {each.id for each in target.inventory(CONTEXT, ["a", "b", "\ud800", "x"])} == {"a"}
    again = [Delivery(d.id, d.hash, d.sequence + 10, fields=d.fields, raw=d.raw) for d in chunk]
    assert target.write(chunk) == [OK] * 4
    assert {each.id for each in target.inventory(CONTEXT)} == {"a", "c", "d"}
    assert target.write(again) == [OK] * 4
    assert {each.id: each.intact for each in target.inventory(CONTEXT)} == dict.fromkeys("abcd", True)
    target.close()


def test_identity_and_sequences(real: RedisServer, client: Any, prefix: str) -> None:
    """Another node's do not count; when all is gone, so are they."""
    target = opened(Redis(real.url, prefix))
    assert (target.highest_sequence(), target.highest_of(CONTEXT)) == (None, None)
    target.write([delivery("a", 7), delete("b", 5)])
    target.write([delivery("c", 6)])
    assert (target.highest_sequence(), target.highest_of(CONTEXT)) == (7, 7)
    assert target.highest_of(CONTEXT._replace(destination="other")) is None
    identity = target.identity()
    for key in client.scan_iter("*"):
        if prefix in key:
            client.delete(key)
    assert target.identity() == ""
    target.check()
    assert target.identity() not in ("", identity)
    target.close()


@pytest.mark.rule("redis.full")
def test_out_of_memory_is_waited_for(real: RedisServer, client: Any, prefix: str) -> None:
    """Nothing of the chunk takes effect, also of a document that is there; then all of it does."""
    target = opened(Redis(real.url, prefix))
    assert target.write([delivery("a", 1, fields={"title": "old"})]) == [OK]
    chunk = [delivery("a", 2, fields={"title": "new"}), delivery("b", 3), delete("a", 4)]
    client.config_set("maxmemory", 1)
    try:
        for some in (chunk[:2], chunk[2:]):
            with pytest.raises(Unavailable, match="raise maxmemory"):
                target.write(some)
        assert client.hget(f"{prefix}a", "title") == "old"
        assert not client.exists(f"{prefix}b")
        assert target.highest_of(CONTEXT) == 1
    finally:
        client.config_set("maxmemory", 0)
    assert target.write(chunk[:2]) == [OK] * 2
    assert client.hget(f"{prefix}a", "title") == "new"
    target.close()


@pytest.mark.rule("redis.full")
@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_an_eviction_policy_is_refused(real: RedisServer, client: Any, prefix: str, policy: str) -> None:
    client.config_set("maxmemory-policy", policy)
    try:
        with pytest.raises(Misconfigured, match=f"maxmemory-policy is {policy}.*noeviction"):
            Redis(real.url, prefix).check()
        client.config_set("maxmemory-policy", "volatile-lru")  # our keys have no expiry
        Redis(real.url, prefix).check()
    finally:
        client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.rule("redis.crash")
@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [("appendonly", "no", "appendonly is off"), ("appendfsync", "everysec", "appendfsync is everysec")],
)
def test_what_a_crash_of_the_server_loses_is_said(
    real: RedisServer, client: Any, prefix: str, caplog: pytest.LogCaptureFixture, setting: str, value: str, says: str
) -> None:
    [before] = client.config_get(setting).values()
    client.config_set(setting, value)
    try:
        with caplog.at_level(logging.WARNING):
            Redis(real.url, prefix).check()
        assert says in Redis(real.url, prefix).durability_risk()
    finally:
        client.config_set(setting, before)
    assert says in caplog.text
    assert PASSWORD not in caplog.text


def test_errors_say_what_to_do(real: RedisServer, client: Any, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without rights; a type that is not ours; a scheme of the environment; a replica."""

    def error(made: Redis) -> DeliveryError:
        with pytest.raises(DeliveryError) as caught:
            opened(made).write([delivery("a", 1)])
        assert PASSWORD not in str(caught.value)
        return caught.value

    client.acl_setuser(
        "reader", enabled=True, passwords=["+secret"], commands=["+@read", "+info", "+client"], keys=["*"]
    )
    refused = error(Redis(real.url.replace(f":{PASSWORD}", "reader:secret"), prefix))
    assert isinstance(refused, Misconfigured)
    assert "what this user may do" in str(refused)
    client.set(f"ferryman:{prefix}versions", "of somebody else")
    assert isinstance(error(Redis(real.url, prefix)), Misconfigured)
    client.delete(f"ferryman:{prefix}versions")
    monkeypatch.setenv("CACHE", real.url)
    assert opened(Redis("${CACHE}", prefix)).write([delivery("a", 1)]) == [OK]
    client.replicaof("127.0.0.1", "1")
    try:
        assert isinstance(error(Redis(real.url, prefix)), Unavailable)
    finally:
        client.replicaof("NO", "ONE")


def test_a_large_chunk_is_several_scripts(real: RedisServer, prefix: str) -> None:
    """In the order of the sequences, whatever their order in the chunk."""
    target = opened(Redis(real.url, prefix))
    chunk = [delivery(f"doc-{n % 4}", n, "x" * 5_000_000) for n in (8, 3, 1, 2, 7, 4, 6, 5)]
    assert target.write(chunk) == [OK] * 8
    assert {each.id: each.intact for each in target.inventory(CONTEXT)} == dict.fromkeys(
        (f"doc-{n}" for n in range(4)), True
    )
    assert target.highest_of(CONTEXT) == 8
    target.close()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"url": "http://host"}, "does not begin with redis://"),
        ({"url": "redis://:pa/ss@host"}, "percent-encode"),
        ({"prefix": ""}, "prefix=''"),
        ({"prefix": "ferryman:x"}, "Ferryman's own"),
        ({"value": "list"}, "choose one of hash, json, sorted_set"),
        ({"value": "sorted_set", "scores": ""}, "name the field"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_meant(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        Redis(**{"url": "redis://host", **arguments})


def test_a_target_has_no_secrets() -> None:
    made = Redis("redis://me:secret@host:6379/3?password=secret", "docs:")
    assert made.target() == "redis://host:6379/3#docs:"
    assert "secret" not in repr(made)
