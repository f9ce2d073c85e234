"""A queue on ZooKeeper's servers that are reached through TLS, and on those that know their users by SASL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.intake import JobQueue, QueueLost, QueueRefused
from ferryman.intake.store.base import Tls, parse_address
from tests.intake.conftest import started
from tests.servers import certificates
from tests.servers.zookeeper import ZooKeeperServer

JAAS = """\
Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required user_anna="secret" user_otto="secret too";
};
"""


class SecuredServer(ZooKeeperServer):
    """A server that does not let everybody in.

    Attributes:
        refused: errors of those who are not let in.
    """

    refused: tuple[type[Exception], ...]

    def shown(self) -> str:
        """Return a queue's URL as it may be shown."""
        raise NotImplementedError

    def login(self) -> str:
        """Return a queue's URL with all that opens it."""
        raise NotImplementedError

    def others(self) -> str | None:
        """Return the URL by which somebody opens the same queue who is known, and whose nodes are not that user's."""
        return None


class TlsServer(SecuredServer):
    """One that has a port for TLS too."""

    refused = (QueueLost,)

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

    def shown(self) -> str:
        return f"zookeeper://127.0.0.1:{self.secure}/tls"

    def login(self) -> str:
        return f"zookeeper://user:secret@127.0.0.1:{self.secure}/tls?tls=true&ca={self.ca}"


class SaslServer(SecuredServer):
    """One that lets nobody do anything who is not known to it."""

    refused = (QueueRefused, QueueLost)

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

    def shown(self) -> str:
        return f"zookeeper://127.0.0.1:{self.port}/sasl"

    def login(self) -> str:
        return f"zookeeper://anna:secret@127.0.0.1:{self.port}/sasl?sasl=true"

    def others(self) -> str:
        return f"zookeeper://otto:secret too@127.0.0.1:{self.port}/sasl?sasl=true"


@pytest.fixture(scope="module", params=[TlsServer, SaslServer])
def secured(request: pytest.FixtureRequest) -> Iterator[SecuredServer]:
    with request.param() as server:
        yield server


@pytest.mark.server
@pytest.mark.rule("intake.tls", "intake.sasl")
def test_a_queue_of_whoever_is_let_in(secured: SecuredServer) -> None:
    """Works as any other: through TLS, where the certificate is signed by the authority that was named, or as a known
    user, whose nodes are that user's alone. Passwords and options are not shown."""
    with JobQueue.open(secured.login()) as queue:
        started(queue, jobs=1)
        job = queue.acquire_job("Pending")
        assert job is not None
        job.set_status("Estimating")
        assert queue.url == secured.shown()
    if others := secured.others():
        with pytest.raises(QueueRefused), JobQueue.open(others) as queue:
            queue.list_jobs()


@pytest.mark.server
@pytest.mark.rule("intake.tls", "intake.sasl")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of kazoo's thread
@pytest.mark.parametrize(
    ("secured", "url"),
    [
        (TlsServer, "127.0.0.1:{server.secure}/tls?tls=true"),
        (TlsServer, "127.0.0.1:{server.secure}/tls?tls=true&ca={other}"),
        (SaslServer, "anna:wrong@127.0.0.1:{server.port}/other?sasl=true"),
        (SaslServer, "127.0.0.1:{server.port}/other"),
        (SaslServer, "anna:secret@127.0.0.1:{server.port}/other"),
    ],
    indirect=["secured"],
)
def test_whoever_is_not_let_in_gets_no_queue(
    secured: SecuredServer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that nobody vouches for is not spoken to; somebody whom the servers do not know is refused."""
    monkeypatch.setattr("ferryman.intake.store.zookeeper.CONNECT_S", 3.0)
    address_of = f"zookeeper://{url.format(server=secured, other=certificates.authority(tmp_path))}"
    with pytest.raises(secured.refused), JobQueue.open(address_of) as queue:
        started(queue, jobs=1)


@pytest.mark.rule("intake.sasl")
def test_the_option_of_sasl() -> None:
    """It needs a user, with a password."""
    found = parse_address("zookeeper://a:b%40c@h:1/p?sasl=true&tls=true")
    assert (found.sasl, found.password, found.tls is not None) == (True, "b@c", True)
    assert not parse_address("zookeeper://a:b@h:1/p?sasl=false").sasl
    for url, why in (("h:1/p?sasl=true", "needs a user"), ("a:b@h:1/p?sasl=yes", "sasl=true or")):
        with pytest.raises(QueueRefused, match=why):
            parse_address(f"zookeeper://{url}")


def test_the_options_of_tls() -> None:
    """Each is understood, or refused."""
    assert parse_address("zookeeper://h:1/p").tls is None
    assert parse_address("zookeeper://h:1/p?tls=true").tls == Tls()
    found = parse_address("zookeeper://h:1/p?tls=true&ca=/a%20b.pem&cert=c&key=k&check_hostname=false").tls
    assert found == Tls("/a b.pem", "c", "k", check_hostname=False)
    for query, why in (("tsl=true", "no option tsl"), ("tls=yes", "tls=true or"), ("ca=x", "give tls=true")):
        with pytest.raises(QueueRefused, match=why):
            parse_address(f"zookeeper://h:1/p?{query}")
