"""Deliveries posted to a URL."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b, sha256
from typing import Any, ClassVar, Final, Literal, NamedTuple

import msgspec

from ferryman import limits
from ferryman.destinations.base import (
    Delivery,
    Destination,
    DestinationContext,
    Effect,
    Facts,
    Guarantee,
    Outcome,
    encode_payloads,
)
from ferryman.errors import Misconfigured, PermanentError, PlanError, Unavailable
from ferryman.net import urls
from ferryman.net.http import ANSWER_BYTES, Answer, Http, NotSent, Unanswered, check_destination, expand_variables

__all__ = ["Webhook"]


# Meaning of the answers to a webhook: whether they concern the documents or the receiver, and what may be sent again.


class StatusMeaning(NamedTuple):
    """Meaning of a status.

    Attributes:
        kind: "refused": not accepted, and never will be; "later": not accepted, send it again; "unsure": it may have
            taken effect.
        universal: whether it concerns the receiver, not these documents.
        remedy: what to do.
    """

    kind: Literal["refused", "later", "unsure"]
    universal: bool
    remedy: str


_LATER: Final = StatusMeaning("later", True, "it is sent again")
_CREDENTIALS: Final = StatusMeaning(
    "refused", True, "correct secret=, headers= or the receiver's rights, then run again"
)
_WRONG_URL: Final = StatusMeaning("refused", True, "correct the URL or the receiver, then run again")
_MOVED: Final = StatusMeaning("refused", True, "a body is not sent after a redirect: give the new URL, then run again")
_DOCUMENT_FAULT: Final = StatusMeaning("refused", False, "change the document in a step, or the receiver")
_TOO_LARGE: Final = StatusMeaning(
    "refused", False, "send fewer at once (batch=, batch_bytes=), or shorten it in a step"
)
_CONFLICT: Final = StatusMeaning("unsure", False, "the receiver may already be processing it")
_FAILED: Final = StatusMeaning("unsure", False, "check the receiver's log")
_GATEWAY: Final = StatusMeaning("unsure", True, "check that the receiver behind the gateway runs")

STATUSES: Final[dict[int, StatusMeaning]] = {
    **dict.fromkeys(urls.NOT_HANDLED, _LATER),
    401: _CREDENTIALS,
    402: _CREDENTIALS,
    403: _CREDENTIALS,
    407: _CREDENTIALS,
    404: _WRONG_URL,
    405: _WRONG_URL,
    406: _WRONG_URL,
    410: _WRONG_URL,
    411: _WRONG_URL,
    414: _WRONG_URL,
    415: _WRONG_URL,
    417: _WRONG_URL,
    421: _WRONG_URL,
    426: _WRONG_URL,
    431: _WRONG_URL,
    501: _WRONG_URL,
    505: _WRONG_URL,
    511: _CREDENTIALS,
    409: _CONFLICT,
    423: _CONFLICT,
    413: _TOO_LARGE,
    500: _FAILED,
}

CLASSES: Final[dict[int, StatusMeaning]] = {3: _MOVED, 4: _DOCUMENT_FAULT, 5: _GATEWAY}
"""First digit of a status that is not listed above -> its meaning."""


def meaning(status: int) -> StatusMeaning:
    """Return the meaning of a status that is not a success; an unknown one counts as a fault of the receiver."""
    return STATUSES.get(status) or CLASSES.get(status // 100, _WRONG_URL)


def outcome_rows() -> Iterator[tuple[str, str]]:
    """Yield (answer, outcome of the deliveries), for the reference."""
    yield "2xx", "ok, or what its `outcomes` say"
    by_meaning: dict[StatusMeaning, list[str]] = {}
    for status, meaning_ in [
        *STATUSES.items(),
        *((f"other {digit}xx", meaning_) for digit, meaning_ in CLASSES.items()),
    ]:
        by_meaning.setdefault(meaning_, []).append(str(status))
    kinds = {
        "later": "transient; sent again under any guarantee",
        "refused": "permanent",
        "unsure": "unknown under at-most-once, else sent again",
    }
    for meaning_, statuses in by_meaning.items():
        about = ", about all" if meaning_.universal else ""
        yield f"{', '.join(statuses)}", f"{kinds[meaning_.kind]}{about}: {meaning_.remedy}"
    yield "no connection, or no TLS", "transient, about all; sent again under any guarantee"
    yield "broken off after it was sent, or no answer in time", "unknown under at-most-once, else sent again"


class ReceiverOutcome(msgspec.Struct):
    """A receiver's outcome for one delivery."""

    hash: str
    outcome: Literal["ok", "stale", "transient", "permanent"]
    why: str = ""


class ReceiverOutcomes(msgspec.Struct):
    """Body of a successful answer that states outcomes."""

    outcomes: list[ReceiverOutcome]


_decode_any = msgspec.json.Decoder().decode
_UNCLEAR: Final = object()


def parse_outcomes(body: bytes, sent: list[Delivery]) -> list[Outcome]:
    """Return the outcomes in the body of a successful answer; without ``outcomes`` in it, all deliveries are ok.

    If the outcomes leave a delivery out, or cannot be parsed, its outcome is unknown, never ok.
    """
    content = _decode_answer(body)
    if content is not _UNCLEAR and not (isinstance(content, dict) and "outcomes" in content):
        return [Outcome.ok()] * len(sent)
    try:
        by_hash = {each.hash: each for each in msgspec.convert(content, ReceiverOutcomes).outcomes}
    except msgspec.ValidationError as e:
        why = "they are not JSON" if content is _UNCLEAR else str(e)
        return [Outcome("unknown", f"the receiver's outcomes cannot be read: {why}")] * len(sent)
    return [_outcome(by_hash.get(delivery.hash)) for delivery in sent]


def _decode_answer(body: bytes) -> Any:
    """Return the JSON of an answer, also as Python's and JavaScript's own libraries write it: half a character of a
    text that was cut, NaN, a byte order mark. ``_UNCLEAR``: it is not JSON, and speaks of outcomes."""
    try:
        return _decode_any(body)
    except (ValueError, RecursionError):
        with suppress(ValueError, RecursionError):
            return json.loads(body)
    return _UNCLEAR if b'"outcomes"' in body else None


def _outcome(answer: ReceiverOutcome | None) -> Outcome:
    if answer is None:
        return Outcome("unknown", "the receiver's outcomes leave this delivery out")
    why = answer.why.encode(errors="replace").decode()
    match answer.outcome:
        case "ok":
            return Outcome.ok()
        case "stale":
            return Outcome.stale()
        case "transient":
            return Outcome.transient(why or "the receiver asks to try later")
    return Outcome.permanent(why or "the receiver refuses it without a reason")


TIMEOUT_S: Final = 30.0
"""Time a request gets: a receiver that needs longer should answer first and work afterwards."""

WRITE_S: Final = limits.SEND_TIMEOUT_S - 10
"""Longest time of a ``write``, with all its waits: it must report what it knows before the engine ends it."""

OWN_HEADERS: Final = ("content-type", "idempotency-key", "webhook-id", "webhook-timestamp", "webhook-signature")
"""Headers that a plan cannot set, because ``Webhook`` sets them itself."""


class UnclearAnswer(Exception):
    """The receiver failed while it processed these deliveries; they may or may not have taken effect."""


class Webhook(Destination):
    """Posts deliveries to a URL as JSON; each counts there, so by default each is posted once at most.

    ``Webhook("https://example.org/hook", secret="${HOOK_SECRET}")`` posts one request per delivery:

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
        batch: deliveries per request; a plan's own ``batch=`` wins. With more than one, a 4xx under at-most-once
            refuses them all; else the request is halved until the one that is refused stands alone.
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
        outcomes=tuple(outcome_rows()),
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
        _, self.headers = check_destination("Webhook", url, headers=headers)
        self.url = url
        self.secret = secret
        self.preferred_batch = batch  # type: ignore[misc]  # of this one
        self.timeout_s = timeout_s
        self.rate = rate
        self.single_writer = rate is not None  # type: ignore[misc]
        self.ca = ca
        self._http: Http | None = None
        self._next_s = 0.0
        if findings := list(self._findings()):
            raise PlanError([f"Webhook({urls.strip_secrets(url)!r}): {finding}" for finding in findings])

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
        return urls.strip_secrets(self.url)

    def check(self) -> None:
        """Check that a server answers. Sends nothing.

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
        results: list[Outcome | None] = [None] * len(chunk)
        bodies = encode_payloads(chunk, results)
        if bodies:
            sent = [chunk[position] for position, _ in bodies]
            for (position, _), outcome in zip(bodies, self._post(sent, [body for _, body in bodies]), strict=True):
                results[position] = outcome
        return [outcome or Outcome.ok() for outcome in results]

    # --- one request --------------------------------------------------------------------------------------------------

    def _post(self, sent: list[Delivery], bodies: list[bytes]) -> list[Outcome]:
        deadline = time.monotonic() + WRITE_S
        body = self._body(bodies)
        headers = {"content-type": "application/json", "idempotency-key": idempotency_key(sent)}
        while True:
            self._wait_for_turn()
            with self._translated_errors():
                try:
                    answer = self._request(body, headers, min(self.timeout_s, deadline - time.monotonic()))
                except NotSent as e:
                    why = f"{self.target()}: {e}"
                    return [Outcome("permanent" if e.permanent else "transient", why, True)] * len(sent)
            if answer.is_success:
                return parse_outcomes(answer.body, sent)
            # Wait here only if there is time for the wait, the next turn and another request; else the engine retries.
            if not answer.wait(deadline - self._turn_s() - self.timeout_s):
                return self._refusal_outcomes(answer, meaning(answer.status), len(sent))

    def _request(self, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
        if self._http is None:
            raise Misconfigured(f"{self.target()}: write before open")
        if self._key is not None:
            headers = {**headers, **signature_headers(self._key, headers["idempotency-key"], body)}
        return self._http.request("POST", self._http.path, body, timeout_s=timeout_s, headers=headers)

    def _refusal_outcomes(self, answer: Answer, meant: StatusMeaning, rows: int) -> list[Outcome]:
        """Return the outcomes of deliveries whose answer was not a success; raise if they may have taken effect."""
        assert self._http is not None
        text = self._http.redact(answer.body)
        why = f"{self.target()}: answered {answer.status} {answer.reason}".rstrip()
        why += answer.asks_to_wait + (f" ({text})" if text else "")
        if meant.kind == "unsure":
            raise (ConnectionError if meant.universal else UnclearAnswer)(f"{why}: {meant.remedy}")
        if meant.kind == "later":
            return [Outcome.unavailable(why)] * rows
        if rows > 1 and not meant.universal and self._context.guarantee is not Guarantee.AT_MOST_ONCE:
            raise PermanentError(why)
        return [Outcome("permanent", f"{why}: {meant.remedy}.", meant.universal)] * rows

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except Unanswered as e:
            raise ConnectionError(f"{self.target()}: it was sent, but {e}") from e

    def _body(self, bodies: list[bytes]) -> bytes:
        context = self._context
        head = {"plan": context.plan, "plan_version": context.plan_version, "destination": context.destination}
        return msgspec.json.encode({**head, "deliveries": [msgspec.Raw(body) for body in bodies]})

    def _turn_s(self) -> float:
        return max(0.0, self._next_s - time.monotonic())

    def _wait_for_turn(self) -> None:
        """Wait for this request's turn."""
        if self.rate is not None:
            time.sleep(self._turn_s())
            self._next_s = time.monotonic() + 1 / self.rate

    def _connection(self) -> Http:
        return Http(self.url, shown=self.target(), headers=self.headers, ca=self.ca)


def idempotency_key(sent: list[Delivery]) -> str:
    """Return the hash of a single delivery, or the hash of the hashes of several."""
    if len(sent) == 1:
        return sent[0].hash
    return blake2b("".join(d.hash for d in sent).encode(), digest_size=16).hexdigest()


# Signatures of requests as in Standard Webhooks (standardwebhooks.com), for which receivers have libraries.


def signing_key(secret: str | None, where: str) -> bytes | None:
    """Return the signing key for a secret; None without one.

    Args:
        secret: text, in which ``${NAME}`` is filled in from the environment; behind ``whsec_`` it is base64.
        where: begins the error's message.

    Raises:
        PermanentError: (universal) a variable is not set, or what follows ``whsec_`` is not base64.
    """
    if secret is None:
        return None
    text = expand_variables(secret, where)
    if not text.startswith("whsec_"):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise Misconfigured(
            f"{where}: the secret begins with whsec_, but is not base64 behind that. Correct it."
        ) from None


def signature_headers(key: bytes, id: str, body: bytes) -> dict[str, str]:
    """Return the headers that sign a request.

    Args:
        id: identifies the request; equal if it is sent again.
    """
    at = int(time.time())
    signed = b"%s.%d." % (id.encode(), at) + body
    return {
        "webhook-id": id,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(hmac.digest(key, signed, sha256)).decode()}",
    }
