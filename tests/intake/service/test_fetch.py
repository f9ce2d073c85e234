"""Fetching: digests are checked, what broke off goes on where it was, a bounded number of times."""

from __future__ import annotations

import hashlib
import itertools
import threading
from pathlib import Path

import pytest

from ferryman.errors import PermanentError, TransientError
from ferryman.intake.service.errors import CorruptSubmission, StopRequested
from ferryman.intake.service.fetch import Fetcher, Tries
from ferryman.net.allowed_addresses import Reach
from tests.intake.service.receiver import FileServer

HERE = Reach(("/",), ("127.0.0.1",))
CONTENT = bytes(range(256)) * 4096


def sha(content: bytes = CONTENT) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def fetcher(tries: int = 3) -> Fetcher:
    return Fetcher(reach=HERE, tries=Tries(tries, 0.001), timeout_s=5)


def test_it_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    """A second try asks for the rest only, and the whole is what it should be."""
    with FileServer({"/a": CONTENT}, breaks=2) as server:
        found = fetcher().fetch_file(server.url("/a"), tmp_path / "a", sha(), len(CONTENT))
        spans = [span for _, _, span in server.asked]
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert (found.size, f"sha256:{found.sha256}") == (len(CONTENT), sha())
    assert spans[0] == ""
    assert all(span.startswith("bytes=") and span != "bytes=0-" for span in spans[1:])
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_a_later_process_goes_on(tmp_path: Path) -> None:
    """What one process fetched before it died, the next does not fetch again."""
    with FileServer({"/a": CONTENT}, breaks=1) as server:
        with pytest.raises(TransientError):
            fetcher(tries=1).fetch_file(server.url("/a"), tmp_path / "a", sha())
        fetcher(tries=1).fetch_file(server.url("/a"), tmp_path / "a", sha())
        assert server.asked[1][2].startswith("bytes=")
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_what_changed_meanwhile_is_fetched_anew(tmp_path: Path) -> None:
    """A part of another content is not gone on with, with a digest or without."""
    for digest in (sha(CONTENT[::-1]), ""):
        with FileServer({"/a": CONTENT}, breaks=1) as server:
            with pytest.raises(TransientError):
                fetcher(tries=1).fetch_file(server.url("/a"), tmp_path / "a", digest)
            server.contents["/a"] = CONTENT[::-1]
            fetcher().fetch_file(server.url("/a"), tmp_path / "a", digest)
        assert (tmp_path / "a").read_bytes() == CONTENT[::-1]
        (tmp_path / "a").unlink()


def test_a_wrong_digest_or_size(tmp_path: Path) -> None:
    """Refused, by name, with nothing left."""
    with FileServer({"/a": CONTENT}) as server:
        with pytest.raises(CorruptSubmission, match=r"/a: its digest is md5:\w+, its submitter says md5:0+"):
            fetcher().fetch_file(server.url("/a"), tmp_path / "a", "md5:" + "0" * 32)
        with pytest.raises(CorruptSubmission, match=r"has more bytes than the 5 that its submitter says"):
            fetcher().fetch_file(server.url("/a"), tmp_path / "a", "", 5)
        with pytest.raises(CorruptSubmission, match=r"has 1048576 bytes, its submitter says 2000000"):
            fetcher().fetch_file(server.url("/a"), tmp_path / "a", "", 2_000_000)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_damaged_is_fetched_again(tmp_path: Path) -> None:
    """What lies there from before is checked too."""
    (tmp_path / "a").write_bytes(b"damaged")
    with FileServer({"/a": CONTENT}) as server:
        fetcher().fetch_file(server.url("/a"), tmp_path / "a", sha())
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_what_is_not_there(tmp_path: Path) -> None:
    """404 is for good; no server at all is tried as often as it may be; a folder or a missing file is for good."""
    with FileServer({}) as server:
        with pytest.raises(PermanentError, match="answered 404"):
            fetcher().fetch_file(server.url("/a"), tmp_path / "a")
        assert len(server.asked) == 1
        gone = server.url("/a")
    with pytest.raises(TransientError, match="tried 3 times"):
        fetcher().fetch_file(gone, tmp_path / "a")
    with pytest.raises(PermanentError, match="No such file"):
        fetcher().fetch_file((tmp_path / "none").as_uri(), tmp_path / "a")
    with pytest.raises(PermanentError, match="is not a file"):
        fetcher().fetch_file(tmp_path.as_uri(), tmp_path / "a")


def test_sizes(tmp_path: Path) -> None:
    """By HEAD; None where nobody says."""
    with FileServer({"/a": CONTENT}) as server:
        assert fetcher().ask_size(server.url("/a")) == len(CONTENT)
        assert fetcher().ask_size(server.url("/none")) is None
    with FileServer({"/a": CONTENT}, sizes=False) as server:
        assert fetcher().ask_size(server.url("/a")) is None
    assert fetcher().ask_size(server.url("/a")) is None, "nobody answers any more"


def test_it_stops(tmp_path: Path) -> None:
    """Once it is to stop, nothing new is asked for."""
    stop = threading.Event()
    stop.set()
    with FileServer({"/a": CONTENT}) as server:
        with pytest.raises(StopRequested):
            Fetcher(stop, reach=HERE).fetch_file(server.url("/a"), tmp_path / "a")
        assert server.asked == []


@pytest.mark.rule("intake.hostile")
@pytest.mark.parametrize(("rate", "slow"), [(1024.0, True), (0.0, False)])
def test_a_server_that_dribbles_is_broken_off(rate: float, slow: bool) -> None:
    """After half a minute; the next try goes on from what has come, as after any break."""
    now = itertools.count(0, 10.0)  # each look at the clock is ten seconds later
    read = Fetcher(reach=HERE, lowest_rate=rate, clock=lambda: next(now))
    pieces = iter([b"x"] * 20)
    told = read._read_chunks("http://x/a", lambda size: next(pieces, b""))
    if not slow:
        assert b"".join(told) == b"x" * 20
        return
    with pytest.raises(TransientError, match="sends less than 1024 bytes a second"):
        list(told)
    assert len(list(pieces)) > 10


def test_a_quick_server_is_not_slow(tmp_path: Path) -> None:
    """However long the file takes as a whole."""
    now = itertools.count(0, 0.5)
    content = bytes(4 << 20)
    with FileServer({"/a": content}) as server:
        read = Fetcher(reach=HERE, tries=Tries(1, 0.001), clock=lambda: next(now))
        assert read.fetch_file(server.url("/a"), tmp_path / "a", sha(content)).size == len(content)
