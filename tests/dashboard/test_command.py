"""``ferryman dashboard`` as a command: what it refuses, and where it listens."""

from __future__ import annotations

import socket
import sys
import urllib.request
from pathlib import Path

import pytest

from ferryman.cli.app import start
from tests.dashboard.browsing import served


def test_a_port_that_is_taken_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert start(["dashboard", str(tmp_path), "--port", port]) == 2
    assert f"--port {port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such-folder"], "there is no such folder"),
        (["--host", "0.0.0.0"], "--token"),
        (["--token", "short"], "16 characters"),
        (["--base-path", "x"], "--base-path x"),
        (["--allow-host", "a/b"], "--allow-host a/b"),
    ],
)
def test_what_cannot_be_served_is_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert start(["dashboard", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("ferryman.dashboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert start(["dashboard", str(tmp_path)]) == 2
    assert "pip install 'ferryman[dashboard]'" in capsys.readouterr().err


def test_it_listens_on_loopback_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    with served(tmp_path, cwd=tmp_path) as url:
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url) as answer:
            assert b"There is nothing to show yet" in answer.read()
