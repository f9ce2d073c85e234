"""Signatures of requests as in Standard Webhooks (standardwebhooks.com), for which receivers have libraries."""

from __future__ import annotations

import base64
import binascii
import hmac
import time
from hashlib import sha256

from ferryman.destinations.environment import filled
from ferryman.errors import Misconfigured


def signing_key(secret: str | None, where: str) -> bytes | None:
    """The key that a secret stands for; None without one.

    Args:
        secret: text, in which ``${NAME}`` is filled in from the environment; behind ``whsec_`` it is base64.
        where: begins the error's message.

    Raises:
        PermanentError: (universal) a variable is not set, or what follows ``whsec_`` is not base64.
    """
    if secret is None:
        return None
    text = filled(secret, where)
    if not text.startswith("whsec_"):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise Misconfigured(
            f"{where}: the secret begins with whsec_, but is not base64 behind that. Correct it."
        ) from None


def signature_headers(key: bytes, id: str, body: bytes) -> dict[str, str]:
    """The headers that sign a request.

    Args:
        id: names the request; the same if it is sent again.
    """
    at = int(time.time())
    signed = b"%s.%d." % (id.encode(), at) + body
    return {
        "webhook-id": id,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(hmac.digest(key, signed, sha256)).decode()}",
    }
