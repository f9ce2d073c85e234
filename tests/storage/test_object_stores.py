"""What a state needs of an object store, of each client and server that is tried here."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from ferryman.errors import EngineError, UsageError
from ferryman.storage import files, objects
from ferryman.storage.objects import ObjectPath, ObjectStore, RemoteStore
from tests.servers.faulty_s3 import BUCKET, FaultyS3, settings
from tests.servers.s3 import S3
from tests.servers.server import Server
from tests.support.http_store import HttpStore
from tests.support.in_store import faulty, set_variables

__all__ = ["faulty"]


@pytest.fixture(
    params=["obstore on a fake", "of the tests on a fake", pytest.param("obstore on S3", id="obstore on S3")]
)
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Each client on each server, in a bucket."""
    if request.param == "obstore on S3":
        server: Callable[[str], Server] = request.getfixturevalue("server")
        s3 = server("s3")
        assert isinstance(s3, S3)
        if BUCKET not in [each["Name"] for each in s3.client().list_buckets()["Buckets"]]:
            s3.client().create_bucket(Bucket=BUCKET)
        url = s3.url
    else:
        url = request.getfixturevalue("faulty").url
    set_variables(monkeypatch, settings(url))
    made = (HttpStore if "of the tests" in request.param else RemoteStore)(f"s3://{BUCKET}")
    yield made
    made.delete([each.key for each in made.list_objects("")])


def test_one_maker_wins(store: ObjectStore) -> None:
    """Of those who create a name, however many at once."""
    tags: list[str | None] = []
    threads = [threading.Thread(target=lambda n=n: tags.append(store.create("a/b", b"%d" % n))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tags) == 8
    assert sum(tag is not None for tag in tags) == 1
    found = store.head("a/b")
    assert found is not None
    assert found.tag in tags
    assert store.create("a/b", b"later") is None


def test_a_version_is_replaced_once(store: ObjectStore) -> None:
    """Whoever names an old tag changes nothing."""
    first = store.put("state.json", b"one")
    assert first is not None
    second = store.put("state.json", b"two", first)
    assert second not in (None, first)
    assert store.put("state.json", b"three", first) is None
    assert store.get_tagged("state.json") == (b"two", second)
    assert store.put("nothing", b"three", first) is None
    assert store.get("nothing") is None


def test_what_is_there_is_listed(store: ObjectStore) -> None:
    """At once, with sizes; also names that only begin alike, and a thousand of them."""
    for name in ("t/a.json", "t/_log/1", "t/_log/2", "t-other", "tt/x"):
        store.put(name, name.encode())
    assert [(each.key, each.size) for each in store.list_objects("t/")] == [
        ("t/_log/1", 8),
        ("t/_log/2", 8),
        ("t/a.json", 8),
    ]
    assert [each.key for each in store.list_objects("t/_log/1")] == ["t/_log/1"]
    folders, found = store.list_folder("t")
    assert folders == ["_log"]
    assert [each.key for each in found] == ["t/a.json"]
    assert store.list_folder("nowhere") == ([], [])
    many = [f"many/{'x' * 45}-{number:04}" for number in range(1001)]
    for name in many:
        store.put(name, b"")
    assert [each.key for each in store.list_objects("many/")] == many
    store.delete([*many, "many/never"])
    assert store.list_objects("many/") == []


def test_a_copy(store: ObjectStore) -> None:
    """With the content of the other one, also where there is one of its name already."""
    store.put("states/a b-ä.parquet", b"one" * 1000)
    store.put("there", b"old")
    for name in ("states/new/a b-ä.parquet", "there"):
        store.copy("states/a b-ä.parquet", name)
        assert store.get(name) == b"one" * 1000
    with pytest.raises(FileNotFoundError):
        store.copy("nothing", "there")
    assert store.get("there") == b"one" * 1000


def test_what_is_gone_is_gone(store: ObjectStore) -> None:
    """It can be removed again, and made again."""
    store.put("x", b"1")
    store.delete(["x"])
    store.delete(["x"])
    assert store.get("x") is None
    assert store.head("x") is None
    assert store.create("x", b"2") is not None


def test_a_name_with_all_kinds_of_characters(store: ObjectStore) -> None:
    """Plans and destinations have names in any language."""
    name = "états/naïve plan (2)-v1/été=1/ü%20&+.parquet"
    store.put(name, b"1")
    assert store.get(name) == b"1"
    assert [each.key for each in store.list_objects("états/")] == [name]


@pytest.mark.rule("store.commit")
def test_an_answer_that_is_lost(faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who made an object knows it, also when the answer was lost after it was made; who did not, too."""
    set_variables(monkeypatch, faulty.settings)
    for store in (RemoteStore(f"s3://{BUCKET}"), HttpStore(f"s3://{BUCKET}")):
        kind = type(store).__name__
        faulty.fail(lost=0.3, refused=0.2, seed=7)
        tags = [store.create(f"{kind}/{number}", b"mine") for number in range(10)]
        others = [store.create(f"{kind}/{number}", b"mine") for number in range(10)]
        replaced = [store.put(f"{kind}/{number}", b"new", tag) for number, tag in enumerate(tags)]
        faulty.fail()
        assert None not in tags
        assert others == [None] * 10
        assert None not in replaced
        assert {store.get(f"{kind}/{number}") for number in range(10)} == {b"new"}


def test_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which, and what to look at."""
    set_variables(monkeypatch, settings("http://127.0.0.1:9"))
    monkeypatch.setattr(objects, "RETRY_S", 0.2)
    with pytest.raises(EngineError, match=r"s3://bucket/a/b: .*address, credentials and permissions"):
        RemoteStore("s3://bucket").get("a/b")


@pytest.mark.parametrize("url", ["ftp://host/a", "s3://", "s3:///a"])
def test_urls_that_are_not_of_stores(url: str) -> None:
    with pytest.raises(UsageError, match="Give s3://BUCKET/PREFIX"):
        files.path_of(url)


def test_a_name_is_not_taken_for_a_file() -> None:
    """Whoever opens it as a file is told."""
    name = ObjectPath.parse("s3://bucket//a//b/")
    assert str(name) == "s3://bucket/a/b"
    assert (name.name, str(name.parent), str(name / "c")) == ("b", "s3://bucket/a", "s3://bucket/a/b/c")
    with pytest.raises(TypeError, match="in an object store"):
        os.fspath(name)


def test_a_process_that_was_forked(faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so: obstore's threads are not in it, and it would wait for them for ever."""
    set_variables(monkeypatch, faulty.settings)
    store = RemoteStore(f"s3://{BUCKET}")
    store.put("before", b"1")
    monkeypatch.setattr("os.getpid", lambda: 1)
    with pytest.raises(EngineError, match="forked"):
        store.get("before")


def test_half_of_the_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variables."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(UsageError, match=r"s3://bucket: .*AccessKeyId.*Set its credentials"):
        RemoteStore("s3://bucket")
