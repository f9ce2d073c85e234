"""What the answers to a webhook mean: for the document, for the receiver, and for what may be sent again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec

from ferryman import net
from ferryman.destinations.base import Delivery, Outcome


class StatusMeaning(NamedTuple):
    """What a status says.

    Attributes:
        kind: "refused": not taken, and never will be; "later": not taken, send it again; "unsure": it may have taken
            effect.
        universal: about the receiver, not about these documents.
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
_THESE: Final = StatusMeaning("refused", False, "change the document in a step, or the receiver")
_TOO_LARGE: Final = StatusMeaning(
    "refused", False, "send fewer at once (batch=, batch_bytes=), or shorten it in a step"
)
_CONFLICT: Final = StatusMeaning("unsure", False, "the receiver may already be processing it")
_FAILED: Final = StatusMeaning("unsure", False, "check the receiver's log")
_GATEWAY: Final = StatusMeaning("unsure", True, "check that the receiver behind the gateway runs")

STATUSES: Final[dict[int, StatusMeaning]] = {
    **dict.fromkeys(net.NOT_TAKEN, _LATER),
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

CLASSES: Final[dict[int, StatusMeaning]] = {3: _MOVED, 4: _THESE, 5: _GATEWAY}
"""Statuses that are not named above, by their first digit."""


def meaning(status: int) -> StatusMeaning:
    """What a status that is not a success says; one that HTTP does not know is the receiver's fault."""
    return STATUSES.get(status) or CLASSES.get(status // 100, _WRONG_URL)


def told() -> Iterator[tuple[str, str]]:
    """(Answer, what becomes of the deliveries), for the reference."""
    yield "2xx", "ok, or what its `outcomes` say"
    by_meaning: dict[StatusMeaning, list[str]] = {}
    for status, meant in [*STATUSES.items(), *((f"other {digit}xx", meant) for digit, meant in CLASSES.items())]:
        by_meaning.setdefault(meant, []).append(str(status))
    kinds = {
        "later": "transient; sent again under any guarantee",
        "refused": "permanent",
        "unsure": "unknown under at-most-once, else sent again",
    }
    for meant, statuses in by_meaning.items():
        about = ", about all" if meant.universal else ""
        yield f"{', '.join(statuses)}", f"{kinds[meant.kind]}{about}: {meant.remedy}"
    yield "no connection, or no TLS", "transient, about all; sent again under any guarantee"
    yield "broken off after it was sent, or no answer in time", "unknown under at-most-once, else sent again"


class Said(msgspec.Struct):
    """A receiver's word on one delivery."""

    hash: str
    outcome: Literal["ok", "stale", "transient", "permanent"]
    why: str = ""


class Outcomes(msgspec.Struct):
    """The body of a success, if it has one that counts."""

    outcomes: list[Said]


_decode = msgspec.json.Decoder(Outcomes).decode
_decode_any = msgspec.json.Decoder().decode


def outcomes(body: bytes, sent: list[Delivery]) -> list[Outcome]:
    """Of a success: a word for each delivery, by its hash. A body that does not speak of outcomes means: all is well.

    One that does, and leaves a delivery out or cannot be understood, leaves it unknown: never ok.
    """
    try:
        found: Any = _decode_any(body)
    except (msgspec.DecodeError, RecursionError):
        return [Outcome.ok()] * len(sent)
    if not isinstance(found, dict) or "outcomes" not in found:
        return [Outcome.ok()] * len(sent)
    try:
        said = {each.hash: each for each in _decode(body).outcomes}
    except msgspec.DecodeError as e:
        return [Outcome("unknown", f"the receiver's outcomes cannot be read: {e}")] * len(sent)
    return [_outcome(said.get(delivery.hash)) for delivery in sent]


def _outcome(said: Said | None) -> Outcome:
    if said is None:
        return Outcome("unknown", "the receiver's outcomes leave this delivery out")
    match said.outcome:
        case "ok":
            return Outcome.ok()
        case "stale":
            return Outcome.stale()
        case "transient":
            return Outcome.transient(said.why or "the receiver asks to try later")
    return Outcome.permanent(said.why or "the receiver refuses it without a reason")
