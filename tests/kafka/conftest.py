"""The broker, and topics at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.servers.kafka import KafkaServer
from tests.support.kafka_topics import Topics
from tests.support.plan_world import place as place  # a fixture
from tests.support.zygote import Zygote


@pytest.fixture(scope="module")
def kafka(server: Callable[[str], Any]) -> KafkaServer:
    broker: KafkaServer = server("kafka")
    return broker


@pytest.fixture(scope="module")
def topics(kafka: KafkaServer) -> Topics:
    return Topics(kafka.url)


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(tmp_path_factory.mktemp("zygote"), "tests.kafka.child") as made:
        yield made
