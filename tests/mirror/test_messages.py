"""What a mirror beside a run says is reported, whenever the run asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ferryman import Plan
from ferryman.errors import Misconfigured
from ferryman.mirror.mirror import BackgroundMirrors


def test_no_message_is_lost() -> None:
    """Also not if the run takes the messages at the very moment at which another one comes."""
    taken: list[str] = []

    class Place(str):
        def __format__(self, spec: str) -> str:
            taken.extend(mirrors.messages())
            return str(self)

    class Refusing:
        servers: Any

        def __init__(self) -> None:
            self.servers = self

        def target(self) -> str:
            return Place("cassandra://here")

        def connection(self) -> None:
            raise Misconfigured("the login is refused.")

    target: Any = Refusing()
    mirrors = BackgroundMirrors(Path("no state"), Plan("p"), [target])
    mirrors.start()
    [message] = [*mirrors.end(), *taken]
    assert message.startswith("mirror cassandra://here: the login is refused.")
