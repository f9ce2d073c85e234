"""Headers of mail that the standard library's parser needs hours for."""

from __future__ import annotations

import pytest

from ferryman import limits, steps
from ferryman.plan import StepNode
from ferryman.steps.formats.mail import HEADER_CHARS, mail

PERSONS = [f"Person {n} <p{n}@example.org>" for n in range(8000)]


def a_mail(*headers: str, body: str = "hello") -> bytes:
    return "\r\n".join(["From: a@example.org", *headers, "", body]).encode()


@pytest.mark.rule("step.mail-headers")
def test_thousands_of_addresses() -> None:
    """As many as fit are read, each whole."""
    content = mail(a_mail("To: " + ", ".join(PERSONS)))
    found = content.fields["to"].split(", ")
    assert found == PERSONS[: len(found)]
    assert HEADER_CHARS / 2 < len(content.fields["to"]) <= HEADER_CHARS
    assert content.fields["author"] == "a@example.org"
    assert content.text.strip() == "hello"


@pytest.mark.rule("step.mail-headers")
@pytest.mark.parametrize("kind", ["To: {}", "Subject: {}", "Content-Disposition: attachment; filename={}", "Date: {}"])
@pytest.mark.parametrize("character", ['"', "(", "<", "=?utf-8?q?a?= ", ";", "a=b; "])
def test_a_header_of_one_kind(kind: str, character: str) -> None:
    """200 KB of it: the mail's other words are read."""
    content = mail(a_mail(kind.format(character * (200_000 // len(character)))))
    assert content.fields["author"] == "a@example.org"


def test_parts_with_thousands_of_parameters() -> None:
    """The first ones count, so the boundary is found."""
    many = "; a=b" * 2000
    part = f"--b\r\nContent-Type: text/plain{many}\r\n\r\nwords\r\n"
    content = mail(a_mail(f"Content-Type: multipart/mixed; boundary=b{many}", body=part * 20 + "--b--"))
    assert content.text.split() == ["words"] * 20


@pytest.mark.rule("timeout.ready-made")
def test_steps_that_have_a_time_limit() -> None:
    """Ready-made steps that read formats, match patterns or ask servers; ``timeout=`` takes precedence."""
    assert StepNode("a", (), fn=steps.extract_text()).call_timeout_s == limits.STEP_TIMEOUT_S
    assert StepNode("a", (), fn=steps.fetch_url("link"), timeout=5.0).call_timeout_s == 5.0
    assert StepNode("a", (), fn=steps.trim("x")).call_timeout_s is None
    assert StepNode("a", (), fn=lambda doc: doc).call_timeout_s is None
