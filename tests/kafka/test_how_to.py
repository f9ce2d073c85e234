"""docs/how-to/ of Kafka: every command is run in a shell, with a real broker; what the pages show is what comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.kafka import KafkaServer
from tests.support.kafka_topics import Topics
from tests.support.page import HOW_TO, QuickShell, Shell


@pytest.mark.parametrize("name", ["index-from-kafka", "deliver-to-kafka"])
@pytest.mark.parametrize(
    "kind", [QuickShell, pytest.param(Shell, marks=[pytest.mark.spark, pytest.mark.slow], id="spark")]
)
def test_the_page_is_true(kafka: KafkaServer, topics: Topics, tmp_path: Path, name: str, kind: type[Shell]) -> None:
    """On topics that are not there yet."""
    for topic in ("orders", "plays"):
        if topics.cluster.topic(topic) is not None:
            topics.delete(topic)
    with kind(tmp_path, {"localhost:9092": kafka.url}) as shell:
        shell.follow(HOW_TO / f"{name}.md")
