"""docs/how-to/index-a-mailbox.md: its commands are run, on files and against Dovecot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers.dovecot import PASSWORD
from tests.servers.registry import require_package
from tests.support.mails import mail
from tests.support.page import HOW_TO, QuickShell

PAGE = HOW_TO / "index-a-mailbox.md"


@pytest.mark.server
def test_the_page_is_true(server: Callable[[str], Any], place: Path) -> None:
    """Each line that the page shows is a line of what its command prints."""
    imapclient = require_package("imapclient")
    dovecot = server("dovecot")
    assert PASSWORD in PAGE.read_text("utf-8")
    with imapclient.IMAPClient("127.0.0.1", dovecot.port, ssl=False) as client:
        client.login("ann", PASSWORD)
        for number, folder in enumerate(("INBOX", "Projects/Ferries", "Private")):
            if not client.folder_exists(folder):
                client.create_folder(folder)
            client.append(folder, mail(number))
    with QuickShell(place, {"1143": str(dovecot.port)}) as shell:
        shell.follow(PAGE)
