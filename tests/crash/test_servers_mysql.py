"""MariaDB behind the crash point right after it was sent to; test_servers.py has the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash import targets
from tests.support.zygote import Zygote


@pytest.mark.rule("guarantee.kill", "guarantee.hash")
def test_killed_there_and_started_again(server: Callable[[str], Any], zygote: Zygote, folder: Path) -> None:
    """Documents that were sent before the kill are there once."""
    targets.survive(server, zygote, folder, "mariadb", "deliver.sent")
