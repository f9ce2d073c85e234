"""A queue on ZooKeeper's servers that know their users by SASL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ferryman.intake import JobQueue, QueueLost, QueueRefused
from ferryman.intake.store.base import parse_address
from tests.intake.conftest import started
from tests.servers.zookeeper import ZooKeeperServer

JAAS = """\
Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required user_anna="secret" user_otto="secret too";
};
"""


class SaslServer(ZooKeeperServer):
    """One that lets nobody do anything who is not known to it."""

    def layout(self) -> None:
        super().layout()
        (self.folder / "jaas.conf").write_text(JAAS)
        with (self.folder / "zoo.cfg").open("a") as out:
            out.write(
                "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"
                "sessionRequireClientSASLAuth=true\n"
            )

    def command(self) -> list[str]:
        java, *rest = super().command()
        return [java, f"-Djava.security.auth.login.config={self.folder}/jaas.conf", *rest]


@pytest.fixture(scope="module")
def server_with_sasl() -> Iterator[SaslServer]:
    with SaslServer() as server:
        yield server


@pytest.mark.server
@pytest.mark.rule("intake.sasl")
def test_a_queue_of_a_known_user(server_with_sasl: SaslServer) -> None:
    """Works as any other; its nodes are that user's alone, and the password is not shown."""
    at = f"127.0.0.1:{server_with_sasl.port}/sasl"
    with JobQueue.open(f"zookeeper://anna:secret@{at}?sasl=true") as queue:
        started(queue, jobs=1)
        job = queue.acquire_job("Pending")
        assert job is not None
        job.set_status("Estimating")
        assert queue.url == f"zookeeper://{at}"
    with pytest.raises(QueueRefused), JobQueue.open(f"zookeeper://otto:secret too@{at}?sasl=true") as queue:
        queue.list_jobs()


@pytest.mark.server
@pytest.mark.rule("intake.sasl")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of kazoo's thread
@pytest.mark.parametrize("login", ["anna:wrong@{}?sasl=true", "{}", "anna:secret@{}"])
def test_somebody_whom_the_servers_do_not_know(
    server_with_sasl: SaslServer, login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gets no queue."""
    monkeypatch.setattr("ferryman.intake.store.zookeeper.CONNECT_S", 3.0)
    at = f"127.0.0.1:{server_with_sasl.port}/other"
    with pytest.raises((QueueRefused, QueueLost)), JobQueue.open(f"zookeeper://{login.format(at)}") as queue:
        started(queue, jobs=1)


@pytest.mark.rule("intake.sasl")
def test_the_option() -> None:
    """It needs a user, with a password."""
    found = parse_address("zookeeper://a:b%40c@h:1/p?sasl=true&tls=true")
    assert (found.sasl, found.password, found.tls is not None) == (True, "b@c", True)
    assert not parse_address("zookeeper://a:b@h:1/p?sasl=false").sasl
    for url, why in (("h:1/p?sasl=true", "needs a user"), ("a:b@h:1/p?sasl=yes", "sasl=true or")):
        with pytest.raises(QueueRefused, match=why):
            parse_address(f"zookeeper://{url}")
