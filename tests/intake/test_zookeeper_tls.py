"""A queue on ZooKeeper's servers through TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.intake import JobQueue, QueueLost, QueueRefused
from ferryman.intake.store.base import Tls, parse_address
from tests.intake.conftest import started
from tests.servers import certificates
from tests.servers.zookeeper import ZooKeeperServer


class TlsServer(ZooKeeperServer):
    """One that has a port for TLS too."""

    def layout(self) -> None:
        super().layout()
        self.secure = self.another_port()
        self.ca = certificates.authority(self.folder)
        key = certificates.server(self.folder)
        with (self.folder / "zoo.cfg").open("a") as out:
            out.write(
                f"secureClientPort={self.secure}\nsecureClientPortAddress=127.0.0.1\n"
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
                f"ssl.keyStore.location={key}\nssl.trustStore.location={self.ca}\nssl.clientAuth=none\n"
            )


@pytest.fixture(scope="module")
def secure() -> Iterator[TlsServer]:
    with TlsServer() as server:
        yield server


@pytest.mark.server
@pytest.mark.rule("intake.tls")
def test_a_queue_through_tls(secure: TlsServer) -> None:
    """Whose certificate is signed by the authority that was named; the options are not shown."""
    url = f"zookeeper://user:secret@127.0.0.1:{secure.secure}/tls"
    with JobQueue.open(f"{url}?tls=true&ca={secure.ca}") as queue:
        started(queue, jobs=1)
        job = queue.acquire_job("Pending")
        assert job is not None
        job.set_status("Estimating")
        assert queue.url == f"zookeeper://127.0.0.1:{secure.secure}/tls"


@pytest.mark.server
@pytest.mark.rule("intake.tls")
@pytest.mark.parametrize("options", ["tls=true", "tls=true&ca={other}"])
def test_a_server_that_nobody_vouches_for(
    secure: TlsServer, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is not spoken to."""
    monkeypatch.setattr("ferryman.intake.store.zookeeper.CONNECT_S", 3.0)
    other = certificates.authority(tmp_path)
    with pytest.raises(QueueLost):
        JobQueue.open(f"zookeeper://127.0.0.1:{secure.secure}/tls?{options.format(other=other)}")


def test_the_options_of_a_url() -> None:
    """Each is understood, or refused."""
    assert parse_address("zookeeper://h:1/p").tls is None
    assert parse_address("zookeeper://h:1/p?tls=true").tls == Tls()
    found = parse_address("zookeeper://h:1/p?tls=true&ca=/a%20b.pem&cert=c&key=k&check_hostname=false").tls
    assert found == Tls("/a b.pem", "c", "k", check_hostname=False)
    for query, why in (("tsl=true", "no option tsl"), ("tls=yes", "tls=true or"), ("ca=x", "give tls=true")):
        with pytest.raises(QueueRefused, match=why):
            parse_address(f"zookeeper://h:1/p?{query}")
