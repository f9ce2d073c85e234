"""Telling submitters: a JSON object posted to the URL that they gave."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ferryman import net
from ferryman.destinations.webhook.signing import signature_headers, signing_key
from ferryman.errors import PermanentError, TransientError
from ferryman.net import shown
from ferryman.reach import NOTHING_PRIVATE, Reach
from ferryman.service import web
from ferryman.service.errors import Corrupt
from ferryman.service.manifest import checked_url
from ferryman.service.slow import SlowHosts

if TYPE_CHECKING:
    from urllib3 import PoolManager

TRIES: Final = 3
TIMEOUT_S: Final = 10.0
"""A receiver that needs longer to say yes keeps a consumer from its work."""


class Callback:
    """Posts to submitters, each time a bounded number of times. A kill between the answer and its note posts again:
    receivers know what they have by ``id``.

    Args:
        stop: set it, and pauses end with ``Stopping``.
        reach: what URLs may lead to.
        slow: a receiver that is slow is not waited for, but ``SlowHost``; None: it is.
        secret: signs what is posted, as webhooks are signed; ``${NAME}`` in it is filled in from the environment.

    Raises:
        Misconfigured: the secret cannot be used.
    """

    def __init__(
        self,
        stop: threading.Event | None = None,
        *,
        reach: Reach = NOTHING_PRIVATE,
        secret: str | None = None,
        tries: int = TRIES,
        pause_s: float = web.PAUSE_FIRST_S,
        timeout_s: float = TIMEOUT_S,
        slow: SlowHosts | None = None,
    ) -> None:
        self._slow = slow
        if slow is not None:
            timeout_s = min(timeout_s, slow.prompt_s)
        self._stop, self._reach = stop or threading.Event(), reach
        self._key = signing_key(secret, "--report-secret")
        self._tries, self._pause_s, self._timeout_s = tries, pause_s, timeout_s

    def tell(self, submitted: Mapping[str, Any], what: Mapping[str, Any]) -> bool:
        """Post to the ``response_url`` of a submission, or of a job. False: none was given.

        Raises:
            PermanentError: the URL is invalid, or its server refuses.
            TransientError: no good answer, as often as it was tried.
            SlowHost: its server keeps us waiting, and is to be waited for apart.
            Stopping.
        """
        url = str(submitted.get("response_url") or "")
        if not url:
            return False
        if not _can_be_posted_to(url):
            raise Corrupt(f"the response_url {shown(url)} is not an http or https URL. Correct it.")
        body = msgspec.json.encode(dict(what))
        web.trying(lambda: self._post(url, body, str(what.get("id") or "")), self._tries, self._pause_s, self._stop)
        return True

    def _post(self, url: str, body: bytes, id: str) -> None:
        from urllib3 import exceptions as of

        signed = signature_headers(self._key, id, body) if self._key else {}
        kind = {"content-type": "application/json", **signed}
        if self._slow is not None:
            self._slow.refuse(url)
        try:
            with net.answer(self._pool, "POST", url, kind, self._timeout_s, body) as answer:
                pass  # what else it says matters to nobody, and may come a byte at a time
        except of.LocationValueError:
            raise PermanentError(f"{shown(url)}: this is not a possible host name. Correct it.") from None
        except of.HTTPError as e:
            if self._slow is not None and isinstance(e, of.TimeoutError):
                raise self._slow.add(url) from None
            raise TransientError(f"{shown(url)}: {type(e).__name__}, no answer") from None
        if 200 <= answer.status < 300:
            return
        said = f"{shown(url)}: answered {answer.status} {answer.reason or ''}".rstrip()
        if net.passes(answer.status):
            raise TransientError(said)
        raise PermanentError(said)

    @cached_property
    def _pool(self) -> PoolManager:
        return self._reach.pool(4)


def _can_be_posted_to(url: str) -> bool:
    try:
        return net.split(checked_url(url))[1].scheme in ("http", "https")
    except Corrupt:
        return False
