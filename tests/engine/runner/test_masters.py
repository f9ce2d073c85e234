"""Whether anybody answers at a cluster's master, which is looked at before Spark waits for minutes."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.engine.runner.masters import addresses_of, check_master
from ferryman.engine.runner.sessions import start
from ferryman.errors import UsageError
from tests.engine.runner.test_launch import PLAN


def yarn_site(folder: Path, **properties: str) -> dict[str, str]:
    listed = "".join(
        f"<property><name>yarn.resourcemanager.{name.replace('__', '-').replace('_', '.')}</name>"
        f"<value>{value}</value></property>"
        for name, value in properties.items()
    )
    folder.mkdir(exist_ok=True)
    (folder / "yarn-site.xml").write_text(f"<configuration>{listed}</configuration>")
    return {"HADOOP_CONF_DIR": str(folder)}


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.mark.parametrize(
    ("master", "environment", "addresses"),
    [
        ("local[*]", {}, []),
        ("local-cluster[2,1,512]", {}, []),
        ("spark://a:1,b", {"http_proxy": "p:1"}, [("a", 1), ("b", 7077)]),
        ("sc://h", {}, [("h", 15002)]),
        ("sc://h:1/;token=x;use_ssl=true", {}, [("h", 1)]),
        ("sc://[::1]:5/", {}, [("::1", 5)]),
        ("sc://h:1", {"grpc_proxy": "p:1"}, []),
        ("k8s://https://h", {}, [("h", 443)]),
        ("k8s://http://h", {}, [("h", 80)]),
        ("k8s://h:6443", {}, [("h", 6443)]),
        ("k8s://https://h:6443/path", {"HTTPS_PROXY": "p:1"}, []),
        ("mesos://h:5050", {}, []),
    ],
)
def test_where_a_master_is(master: str, environment: dict[str, str], addresses: list[tuple[str, int]]) -> None:
    assert addresses_of(master, {}, environment) == addresses


@pytest.mark.parametrize(
    ("master", "shown"),
    [
        ("sc://127.0.0.1:1/;use_ssl=true;token=s3cret", "sc://127.0.0.1:1/…"),
        ("spark://me:s3cret@127.0.0.1:1", "spark://127.0.0.1:1"),
    ],
)
def test_no_secret_of_a_master_is_shown(master: str, shown: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--master {shown}: nobody answers")) as caught:
        check_master(master, {})
    assert "s3cret" not in str(caught.value)


def test_where_yarn_is(tmp_path: Path) -> None:
    """In its configuration, or in Spark's settings; what is not known there is left to Hadoop."""
    one = yarn_site(tmp_path / "one", hostname="rm")
    assert addresses_of("yarn", {}, one) == [("rm", 8032)]
    named = yarn_site(tmp_path / "named", hostname="rm", address="${yarn.resourcemanager.hostname}:18032")
    assert addresses_of("yarn", {}, named) == [("rm", 18032)]
    several = yarn_site(tmp_path / "several", ha_rm__ids="x, y", hostname_x="a", address_y="b:5")
    assert addresses_of("yarn", {}, several) == [("a", 8032), ("b", 5)]
    assert addresses_of("yarn", {"spark.hadoop.yarn.resourcemanager.address": "c:7"}, {}) == [("c", 7)]
    assert addresses_of("yarn", {}, yarn_site(tmp_path / "unknown", hostname="${env.RM}")) == []
    (tmp_path / "unknown" / "yarn-site.xml").write_text("<configuration")
    assert addresses_of("yarn", {}, {"YARN_CONF_DIR": str(tmp_path / "unknown")}) == []


def test_no_configuration_of_yarn(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing says where YARN is\. Set HADOOP_CONF_DIR to the folder"):
        addresses_of("yarn", {}, {})
    with pytest.raises(UsageError, match=f"{tmp_path}/none: there is no such folder"):
        addresses_of("yarn", {}, {"HADOOP_CONF_DIR": f"{tmp_path}/none"})


@pytest.mark.parametrize("master", ["spark://127.0.0.1:{}", "sc://127.0.0.1:{}", "k8s://http://127.0.0.1:{}", "yarn"])
def test_nobody_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int, silent: socket.socket, master: str
) -> None:
    """One line, before Spark is started; one of several that answers is enough."""
    for variable, value in yarn_site(tmp_path, address=f"127.0.0.1:{closed_port}").items():
        monkeypatch.setenv(variable, value)
    master = master.format(closed_port)
    with pytest.raises(UsageError) as refused:
        start(master, {}, "test")
    where = f" in {tmp_path}/yarn-site.xml" if master == "yarn" else ""
    assert str(refused.value) == (
        f"--master {master}: nobody answers (127.0.0.1:{closed_port}: Connection refused). Nothing was done: start the "
        f"cluster or correct its address{where}, and run again."
    )
    check_master(f"spark://127.0.0.1:{closed_port},127.0.0.1:{silent.getsockname()[1]}", {})


def test_a_name_that_nobody_has() -> None:
    with pytest.raises(UsageError, match=r"nobody answers \(no-such-host\.invalid:7077: .+\)\. Nothing was done"):
        check_master("spark://no-such-host.invalid:7077", {})


def test_an_interrupt_ends_a_start_by_connect(tmp_path: Path, silent: socket.socket) -> None:
    """Of a server that takes the connection and says nothing."""
    pytest.importorskip("grpc")
    (tmp_path / "plan.py").write_text(PLAN)
    master = f"sc://127.0.0.1:{silent.getsockname()[1]}"
    command = [sys.executable, "-m", "ferryman.cli", "run", "plan.py", "--master", master]
    silent.settimeout(120)
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
        silent.accept()[0].close()  # it looks whether anybody answers
        kept, _ = silent.accept()
        with kept:
            assert kept.recv(1), "it asks for a session"
            run.send_signal(signal.SIGINT)
            _, said = run.communicate(timeout=120)
    assert run.returncode == 130
    assert said.splitlines()[-1].startswith("interrupted: nothing is lost.")
