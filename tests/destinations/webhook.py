"""Webhooks to a server of the test's own, and what comes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ferryman.destinations import DestinationContext, Guarantee, Outcome, Webhook
from ferryman.testing.destinations import delivery
from tests.support.receiver import Receiver

ONCE, AGAIN = Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE
THREE = [delivery("a", 1), delivery("b", 2), delivery("c", 3)]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


def opened(receiver: Receiver | str, guarantee: Guarantee = ONCE, **options: Any) -> Webhook:
    hook = Webhook(receiver if isinstance(receiver, str) else receiver.url, **options)
    hook.open(DestinationContext("plays", 2, "notify", 1, guarantee))
    return hook


def kinds(outcomes: list[Outcome]) -> list[tuple[str, bool]]:
    return [(outcome.kind, outcome.universal) for outcome in outcomes]
