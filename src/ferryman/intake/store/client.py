"""A client of ZooKeeper's servers, as a queue's URL says."""

from __future__ import annotations

import logging
from typing import Any, Final

from ferryman.intake.errors import QueueRefused
from ferryman.intake.store.address import Address, Tls

log = logging.getLogger("ferryman.intake")

RECONNECT_MAX_S: Final = 1.0
"""Longest pause between two tries to reach a server again: kazoo would wait up to a minute, six sessions long."""

TRIES_A_SESSION: Final = 3
"""Times that a server is tried at least while a session may still live. One that is just starting may take a connection
and never answer (ZooKeeper 3.9 does): kazoo waits for it for a session divided by the servers that it was given."""


def client_of(at: Address, session_timeout_s: float) -> tuple[Any, Any]:
    """A kazoo client that is not started yet, and the ACL of what it makes; None for an open one.

    Raises:
        QueueRefused: kazoo, or with SASL pure-sasl, is not installed.
    """
    client, security = _kazoo()
    acl, login = None, None
    if at.sasl:
        acl = [security.make_acl("sasl", at.user, all=True)]
    elif at.user:
        acl = [security.make_digest_acl(at.user, at.password, all=True)]
        login = [("digest", f"{at.user}:{at.password}")]
    if not at.user and not at.is_local:
        log.warning(
            "%s: anyone who reaches these servers may change this queue: give user:password@ in its URL", at.shown
        )
    made = client.KazooClient(
        hosts=",".join([at.hosts] * -(-TRIES_A_SESSION // len(at.hosts.split(",")))),
        timeout=session_timeout_s,
        auth_data=login,
        default_acl=acl,
        **_secure(at.tls),
        **_known(at),
        connection_retry={"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": RECONNECT_MAX_S},
    )
    return made, acl


def _secure(tls: Tls | None) -> dict[str, Any]:
    """kazoo's words for it."""
    if tls is None:
        return {}
    files = {"ca": tls.ca or None, "certfile": tls.cert or None, "keyfile": tls.key or None}
    return {"use_ssl": True, "verify_certs": True, "check_hostname": tls.check_hostname, **files}


def _known(at: Address) -> dict[str, Any]:
    """How the user proves to the servers who it is."""
    if not at.sasl:
        return {}
    try:
        import puresasl.client  # noqa: F401 - kazoo loads it when it connects
    except ImportError:
        raise QueueRefused(
            "sasl=true needs the package pure-sasl, which is not installed: pip install 'ferryman[intake]'"
        ) from None
    return {"sasl_options": {"mechanism": "DIGEST-MD5", "username": at.user, "password": at.password}}


def _kazoo() -> tuple[Any, Any]:
    try:
        from kazoo import client, security
    except ImportError:
        raise QueueRefused(
            "a queue on ZooKeeper needs the package kazoo, which is not installed: pip install 'ferryman[intake]'"
        ) from None
    # What it has to say, its errors say: nobody shall be told twice, unless a program asks for its log.
    logging.getLogger("kazoo").addHandler(logging.NullHandler())
    return client, security
