"""Deliveries posted to a URL."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, ClassVar, Final

import msgspec

from ferryman import limits, net
from ferryman.destinations.base import Delivery, Destination, DestinationContext, Effect, Facts, Guarantee, Outcome
from ferryman.destinations.http import ANSWER_BYTES, Answer, Http, NotSent, Unanswered
from ferryman.destinations.payload import payloads
from ferryman.destinations.webhook.answers import StatusMeaning, meaning, outcomes, told
from ferryman.destinations.webhook.signing import signature_headers, signing_key
from ferryman.errors import Misconfigured, PermanentError, PlanError, Unavailable

TIMEOUT_S: Final = 30.0
"""Time a request gets: a receiver that needs longer should answer first and work afterwards."""

WRITE_S: Final = limits.SEND_TIMEOUT_S - 10
"""Time a ``write`` takes at most, with all its waits: it must say itself what it knows, before it is given up."""

OWN_HEADERS: Final = ("content-type", "idempotency-key", "webhook-id", "webhook-timestamp", "webhook-signature")
"""What a plan cannot set: the body and the key are what they are, and the signature is made of them."""


class UnclearAnswer(Exception):
    """The receiver failed over these deliveries; they may have taken effect, or not."""


class Webhook(Destination):
    """Posts deliveries to a URL as JSON; each counts there, so by default each is posted once at most.

    ``Webhook("https://example.org/hook", secret="${HOOK_SECRET}")`` posts a request a delivery:

    ``{"plan": "…", "plan_version": 1, "destination": "…", "deliveries": [{"hash": "…", "sequence": 7, "operation":
    "upsert", "id": "…", "parent_id": null, "origin_id": "…", "source": "…", "version": "…", "route": [], "fields": {},
    "text": "…"}]}``

    A delete has no fields, and ``text`` is null, as it is without raw bytes. Bytes that are not UTF-8 are in
    ``raw_base64``, and ``text`` is null. The same deliveries are the same body, on every attempt.

    **Idempotency-Key** is the delivery's hash; of several deliveries in a request, the hash (BLAKE2b-128) of their
    hashes. What is sent again has the same key, if it is cut into the same requests: with ``batch=1`` it always is.

    **Signature.** With ``secret`` each request is signed as in Standard Webhooks (standardwebhooks.com), which has
    libraries for receivers: ``webhook-id`` is the key, ``webhook-timestamp`` seconds since 1970, ``webhook-signature``
    is ``v1,`` and the base64 of HMAC-SHA256 over ``<id>.<timestamp>.<body>``.

    **The answer.** 2xx means that all is well, unless its body is ``{"outcomes": [{"hash": "…", "outcome": "ok", "why":
    ""}, …]}`` with "ok", "stale", "transient" or "permanent" for each delivery; one that is left out is unknown.
    Anything but 2xx must mean that nothing took effect, or that the receiver does not know.

    **After a kill** under at-most-once (the default) a request that was in flight is unknown, and is never sent again.
    So is one whose connection broke after it was sent, or that was answered 409, 423 or 5xx other than 501, 503, 505
    and 511. Sent again is only what certainly took no effect: no connection, or 408, 425, 429 or 503. Under
    ``guarantee="at-least-once"`` all of these are sent again: for receivers that know a key again.

    Args:
        url: where to post. ``${NAME}`` in it, in ``secret`` and in ``headers`` is filled in from the environment of the
            driver and the workers: then it is in no plan file, state, message or log. A user and password in the URL
            are sent as Basic authentication.
        secret: what requests are signed with. One that begins with ``whsec_`` is base64 behind that.
        batch: deliveries a request; a plan's own ``batch=`` wins. With more than one, a 4xx under at-most-once refuses
            them all; else the request is halved until the one that is refused stands alone.
        headers: sent with each request.
        timeout_s: seconds from the connection to the answer.
        rate: requests a second at most. One task then sends at a time, so it is the rate of this destination; two
            destinations do not know of each other. None: as fast as the receiver answers.
        ca: a PEM file with the authorities to trust; None: the system's.

    An answer that asks to wait a few seconds (``Retry-After``) is obeyed at once; longer, and the destination is left
    alone for a while. Redirects are not followed. The receiver is connected to, but nothing is sent, before each wave.

    Raises:
        PlanError: when it is made: an argument that cannot be meant.
    """

    effect = Effect.POTENT
    transactional = False

    preferred_batch: ClassVar[int | None] = 1
    """A refusal then speaks of one document, and the key is its hash."""

    facts: ClassVar[Facts] = Facts(
        stored="what the receiver makes of it; each request says the deliveries' hashes and sequences",
        limits=(f"a `write` has {WRITE_S:g} s", f"of an answer {ANSWER_BYTES >> 20} MiB are read"),
        outcomes=tuple(told()),
    )

    def __init__(
        self,
        url: str,
        secret: str | None = None,
        batch: int = 1,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        rate: float | None = None,
        ca: str | None = None,
    ) -> None:
        self.url = url
        self.secret = secret
        self.preferred_batch = batch  # type: ignore[misc]  # of this one
        self.headers = dict(headers or {})
        self.timeout_s = timeout_s
        self.rate = rate
        self.single_writer = rate is not None  # type: ignore[misc]
        self.ca = ca
        self._http: Http | None = None
        self._next_s = 0.0
        if findings := list(self._findings()):
            raise PlanError([f"Webhook({net.plain(url)!r}): {finding}" for finding in findings])

    def _findings(self) -> Iterator[str]:
        if not self.url.startswith(("http://", "https://", "${")):
            yield "the url is not an http or https URL"
        if self.secret is not None and not self.secret:
            yield "the secret is empty: leave it out, or name a variable: secret='${HOOK_SECRET}'"
        if self.preferred_batch is None or self.preferred_batch < 1:
            yield f"batch={self.preferred_batch}: give 1 or more"
        if not 0 < self.timeout_s <= WRITE_S:
            yield f"timeout_s={self.timeout_s:g}: give a time above 0 and at most {WRITE_S:g}"
        if self.rate is not None and not self.rate * WRITE_S > 2:
            yield f"rate={self.rate:g}: give more than {2 / WRITE_S:g} requests a second"
        for name in self.headers:
            if name.lower() in OWN_HEADERS:
                yield f"headers: {name} is set by Webhook itself"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_http": None, "_key": None}

    def target(self) -> str:
        return net.plain(self.url)

    def check(self) -> None:
        """Is there somebody to talk to? Sends nothing.

        Raises:
            TransientError: no connection.
            PermanentError: a variable is not set, the URL is invalid, the certificate is not trusted.
        """
        http = self._connection()
        try:
            signing_key(self.secret, self.target())
            http.connect(self.timeout_s)
        except NotSent as e:
            if e.permanent:
                raise Misconfigured(f"{self.target()}: {e}") from e
            raise Unavailable(f"{self.target()}: {e}") from e
        finally:
            http.close()

    def open(self, context: DestinationContext) -> None:
        self._context = context
        self._key = signing_key(self.secret, self.target())
        self._http = self._connection()

    def close(self) -> None:
        if self._http is not None:
            self._http.close()

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """Post it.

        Raises:
            ConnectionError: it may have taken effect, or not; it is the receiver's trouble.
            UnclearAnswer: it may have taken effect, or not; it may be these deliveries' fault.
            PermanentError: it is refused, and halving it shows which delivery is meant (not under at-most-once).
        """
        found: list[Outcome | None] = [None] * len(chunk)
        bodies = payloads(chunk, found)
        if bodies:
            sent = [chunk[position] for position, _ in bodies]
            for (position, _), outcome in zip(bodies, self._post(sent, [body for _, body in bodies]), strict=True):
                found[position] = outcome
        return [outcome or Outcome.ok() for outcome in found]

    # --- one request --------------------------------------------------------------------------------------------------

    def _post(self, sent: list[Delivery], bodies: list[bytes]) -> list[Outcome]:
        give_up = time.monotonic() + WRITE_S
        body = self._body(bodies)
        headers = {"content-type": "application/json", "idempotency-key": idempotency_key(sent)}
        while True:
            self._pace()
            with self._unanswered():
                try:
                    answer = self._request(body, headers, min(self.timeout_s, give_up - time.monotonic()))
                except NotSent as e:
                    why = f"{self.target()}: {e}"
                    return [Outcome("permanent" if e.permanent else "transient", why, True)] * len(sent)
            if answer.fine:
                return outcomes(answer.body, sent)
            meant = meaning(answer.status)
            wait_s = net.retry_after_s(answer.headers) if meant.kind == "later" else None
            # Time for the wait, for the next turn and for another request, else it is the destination's circuit's work.
            if wait_s is None or time.monotonic() + wait_s + self._turn_s() + self.timeout_s > give_up:
                return self._refused(answer, meant, wait_s, len(sent))
            time.sleep(wait_s)

    def _request(self, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
        if self._http is None:
            raise Misconfigured(f"{self.target()}: write before open")
        if self._key is not None:
            headers = {**headers, **signature_headers(self._key, headers["idempotency-key"], body)}
        return self._http.request("POST", self._http.path, body, timeout_s=timeout_s, headers=headers)

    def _refused(self, answer: Answer, meant: StatusMeaning, wait_s: float | None, rows: int) -> list[Outcome]:
        """What becomes of deliveries that were answered with no success. What is not sure is raised."""
        assert self._http is not None
        said = self._http.shown(answer.body)
        why = f"{self.target()}: answered {answer.status} {answer.reason}".rstrip()
        why += (f", asks to wait {wait_s:.0f} s" if wait_s else "") + (f" ({said})" if said else "")
        if meant.kind == "unsure":
            raise (ConnectionError if meant.universal else UnclearAnswer)(f"{why}: {meant.remedy}")
        if meant.kind == "later":
            return [Outcome.unavailable(why)] * rows
        if rows > 1 and not meant.universal and self._context.guarantee is not Guarantee.AT_MOST_ONCE:
            raise PermanentError(why)
        return [Outcome("permanent", f"{why}: {meant.remedy}.", meant.universal)] * rows

    @contextmanager
    def _unanswered(self) -> Iterator[None]:
        try:
            yield
        except Unanswered as e:
            raise ConnectionError(f"{self.target()}: it was sent, but {e}") from e

    def _body(self, bodies: list[bytes]) -> bytes:
        context = self._context
        told = {"plan": context.plan, "plan_version": context.plan_version, "destination": context.destination}
        return msgspec.json.encode({**told, "deliveries": [msgspec.Raw(body) for body in bodies]})

    def _turn_s(self) -> float:
        return max(0.0, self._next_s - time.monotonic())

    def _pace(self) -> None:
        """Wait for this request's turn."""
        if self.rate is not None:
            time.sleep(self._turn_s())
            self._next_s = time.monotonic() + 1 / self.rate

    def _connection(self) -> Http:
        return Http(self.url, shown=self.target(), headers=self.headers, ca=self.ca)


def idempotency_key(sent: list[Delivery]) -> str:
    """The hash of the one delivery, or the hash of the hashes of several."""
    if len(sent) == 1:
        return sent[0].hash
    return blake2b("".join(d.hash for d in sent).encode(), digest_size=16).hexdigest()
