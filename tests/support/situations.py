"""Destinations and steps that bring documents into each situation."""

from __future__ import annotations

from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from ferryman.errors import Dropped


def answer(delivery: Delivery) -> Outcome | None:
    """By the id, or by the content where there is some."""
    match delivery.text() or delivery.id:
        case "refuse":
            return Outcome.permanent("refused")
        case "fail":
            return Outcome.transient("busy")
        case "stale":
            return Outcome.stale()
        case "down":
            return Outcome.unavailable("down")
        case "silent":
            return None
        case _:
            return Outcome.ok()


def step(doc: Document) -> Document | None:
    match doc.text():
        case "drop":
            return None
        case "drop with a reason":
            raise Dropped("a draft")
        case "break":
            raise RuntimeError("broken")
    return doc
