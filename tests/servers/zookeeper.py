"""ZooKeeper: the real server, from the jars that come with pyspark; alone, or several of them with a leader."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

from tests.servers.cache import Missing
from tests.servers.java import java
from tests.servers.server import Server

SETTINGS: Final = """\
tickTime=500
initLimit=20
syncLimit=10
dataDir={folder}/data
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
maxClientCnxns=0
4lw.commands.whitelist=*
minSessionTimeout=1000
maxSessionTimeout=60000
"""

WORD_S: Final = 2.0
"""A server that does not answer a four letter word in this time is not ready."""


class ZooKeeperServer(Server):
    """One server. ``peers``: the ports of all servers of a quorum, this one's at ``number - 1``."""

    name = "zookeeper"
    usual_port = 2181
    start_s = 600.0
    heap = "256m"
    """Enough for tests, of which several run at once."""

    def __init__(self, folder: Path | None = None, *, number: int = 1, peers: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__(folder)
        self.number, self.peers = number, peers

    @classmethod
    def install(cls) -> Path:
        java()
        spec = find_spec("pyspark")
        jars = Path(spec.origin).parent / "jars" if spec and spec.origin else Path()
        if not list(jars.glob("zookeeper-3*.jar")):
            raise Missing("pyspark's jars have no ZooKeeper among them: install pyspark 4")
        return jars

    def layout(self) -> None:
        (self.folder / "data").mkdir()
        (self.folder / "data" / "myid").write_text(f"{self.number}\n")
        peers = [f"server.{at}=127.0.0.1:{a}:{b}\n" for at, (a, b) in enumerate(self.peers, 1)]
        (self.folder / "zoo.cfg").write_text(SETTINGS.format(folder=self.folder, port=self.port) + "".join(peers))

    def command(self) -> list[str]:
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        # A test kills processes, not machines: without fsync it is ten times as fast.
        small = [f"-Xmx{self.heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no"]
        return [java(), *small, "-cp", f"{self.home}/*", main, f"{self.folder}/zoo.cfg"]

    def word(self, letters: str) -> str:
        """The answer to a four letter word; "" if there is none."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), WORD_S) as asking:
            asking.settimeout(WORD_S)
            asking.sendall(letters.encode())
            return b"".join(iter(lambda: asking.recv(65536), b"")).decode()
        return ""

    def ready(self) -> bool:
        return self.word("ruok") == "imok" and "Mode:" in self.word("srvr")

    @property
    def leads(self) -> bool:
        """Is it the leader of a quorum?"""
        return "Mode: leader" in self.word("srvr")

    @property
    def url(self) -> str:
        return f"zookeeper://127.0.0.1:{self.port}"

    @property
    def transactions(self) -> list[Path]:
        """The files of its transaction log, oldest first."""
        return sorted((self.folder / "data" / "version-2").glob("log.*"), key=lambda path: int(path.suffix[1:], 16))


class Quorum:
    """Three servers, of which any two go on."""

    def __init__(self) -> None:
        probe = ZooKeeperServer()
        peers = [(probe.another_port(), probe.another_port()) for _ in range(3)]
        probe.close()
        self.servers = [ZooKeeperServer(number=number, peers=peers) for number in (1, 2, 3)]

    def __enter__(self) -> Self:
        try:
            with ThreadPoolExecutor(len(self.servers)) as at_once:  # each is ready when another one is
                list(at_once.map(ZooKeeperServer.start, self.servers))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.close()

    def leader(self) -> ZooKeeperServer:
        """The leader, once there is one."""
        give_up = time.monotonic() + 300
        while time.monotonic() < give_up:
            for server in self.servers:
                if server.running and server.leads:
                    return server
            time.sleep(0.1)
        raise AssertionError("the quorum has no leader")

    @property
    def url(self) -> str:
        return "zookeeper://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
