"""Spark's masters: whether anybody answers there. Spark itself waits for minutes, and then says something else."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ferryman.errors import UsageError
from ferryman.net import urls

_PATIENCE_S: Final = 10.0
"""Seconds in which one of a master's addresses must take a connection."""

_DEFAULT_PORTS: Final = {"spark": 7077, "sc": 15002, "k8s": 443, "yarn": 8032}

_HADOOP_FOLDERS: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_RESOURCE_MANAGER: Final = "yarn.resourcemanager"


class MasterAddress(NamedTuple):
    """Host and port of a master."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def check_master(master: str, conf: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> None:
    """Check that somebody answers at a cluster's master.

    Raises:
        UsageError: nobody does within ``_PATIENCE_S`` seconds, or nothing says where YARN is.
    """
    addresses = addresses_of(master, conf, environment)
    if not addresses:
        return
    problems: dict[MasterAddress, str] = {}
    give_up = time.monotonic() + _PATIENCE_S
    for number, address in enumerate(addresses):
        left_s = max(1.0, give_up - time.monotonic()) / (len(addresses) - number)
        try:
            socket.create_connection(address, left_s).close()
        except OSError as e:
            problems[address] = e.strerror or str(e)
        else:
            return
    found = "; ".join(f"{address}: {why}" for address, why in problems.items())
    raise UsageError(
        f"--master {shown_master(master)}: nobody answers ({found}). Nothing was done: start the cluster or correct "
        f"its address{_where_to_correct(master, environment)}, and run again."
    )


def shown_master(master: str) -> str:
    """Return a master for messages: without login, and without the parameters of ``sc://``: one may be a token."""
    return urls.redact(master.partition(";")[0]) + ("…" if ";" in master else "")


def addresses_of(
    master: str, conf: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> list[MasterAddress]:
    """Return where a master may be reached; none: it is this machine, or is reached in a way that is not known here.

    Raises:
        UsageError: nothing says where YARN is.
    """
    if master == "yarn":
        return _yarn_addresses(conf, environment)
    kind, separator, rest = master.partition("://")
    if not separator or kind not in ("spark", "sc", "k8s"):
        return []
    if kind == "k8s" and "://" in rest:
        scheme, _, rest = rest.partition("://")
        port = 80 if scheme == "http" else _DEFAULT_PORTS["k8s"]
    else:
        port = _DEFAULT_PORTS[kind]
    addresses = [_parse(each, port) for each in re.split(r"[/;?]", rest, maxsplit=1)[0].split(",")]
    if kind == "spark":
        return addresses
    return [each for each in addresses if not _through_proxy(each.host, kind, environment)]


def _parse(text: str, port: int) -> MasterAddress:
    parsed = urllib.parse.urlsplit(f"//{text}")
    with contextlib.suppress(ValueError):  # Spark refuses such a port in its own words
        port = parsed.port or port
    return MasterAddress(parsed.hostname or "", port)


def _through_proxy(host: str, kind: str, environment: Mapping[str, str]) -> bool:
    """Return whether gRPC or the client of Kubernetes asks a proxy for this host."""
    names = ("grpc_proxy", "https_proxy", "http_proxy") if kind == "sc" else ("https_proxy", "http_proxy", "all_proxy")
    proxied = any(environment.get(name) or environment.get(name.upper()) for name in names)
    return proxied and not urllib.request.proxy_bypass(host)


# --- YARN: its configuration says where it is ---------------------------------------------------------


def _yarn_addresses(conf: Mapping[str, str], environment: Mapping[str, str]) -> list[MasterAddress]:
    folders = [folder for name in _HADOOP_FOLDERS if (folder := environment.get(name))]
    settings: dict[str, str] = {}
    for folder in reversed(folders):
        settings |= _read_settings(Path(folder, "core-site.xml")) | _read_settings(Path(folder, "yarn-site.xml"))
    prefix = "spark.hadoop."
    settings |= {name.removeprefix(prefix): value for name, value in conf.items() if name.startswith(prefix)}
    if not folders and not any(name.startswith(_RESOURCE_MANAGER) for name in settings):
        raise UsageError(
            "--master yarn: nothing says where YARN is. Set HADOOP_CONF_DIR to the folder that holds the cluster's "
            "yarn-site.xml and core-site.xml, and run again."
        )
    if any(not Path(folder).is_dir() for folder in folders):
        missing = next(folder for folder in folders if not Path(folder).is_dir())
        raise UsageError(f"--master yarn: {missing}: there is no such folder. Correct HADOOP_CONF_DIR, and run again.")
    return [each for each in _resource_managers(settings) if each.host not in ("", "0.0.0.0") and "$" not in each.host]


def _resource_managers(settings: Mapping[str, str]) -> Iterator[MasterAddress]:
    ids = [each.strip() for each in settings.get(f"{_RESOURCE_MANAGER}.ha.rm-ids", "").split(",") if each.strip()]
    for suffix in [f".{each}" for each in ids] or [""]:
        address = settings.get(f"{_RESOURCE_MANAGER}.address{suffix}", "")
        host = settings.get(f"{_RESOURCE_MANAGER}.hostname{suffix}", "")
        text = address.replace(f"${{{_RESOURCE_MANAGER}.hostname{suffix}}}", host) or host
        yield _parse(text, _DEFAULT_PORTS["yarn"])


def _read_settings(path: Path) -> dict[str, str]:
    """Return the settings in a file of Hadoop's; none if it cannot be read: Hadoop itself may find another one."""
    try:
        root = ET.parse(path).getroot()
    except (OSError, ET.ParseError):
        return {}
    return {
        name.strip(): (each.findtext("value") or "").strip()
        for each in root.iter("property")
        if (name := each.findtext("name"))
    }


def _where_to_correct(master: str, environment: Mapping[str, str]) -> str:
    if master != "yarn":
        return ""
    folder = next((environment[name] for name in _HADOOP_FOLDERS if environment.get(name)), "")
    return f" in {folder}/yarn-site.xml" if folder else ""
