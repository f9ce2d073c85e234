"""``extract_text`` of files as the programs write them that people use: what a person sees, no more and no less."""

from __future__ import annotations

import pytest

from ferryman import steps
from ferryman.document import Document
from tests.steps.corpus import producers

SAMPLES = producers.samples()


def test_each_sample_is_read_as_a_person_sees_it() -> None:
    """Word by word, with attachments; what is left out is named."""
    extract = steps.extract_text(languages=None)
    wrong = []
    for sample in SAMPLES:
        found = extract(Document(sample.name, raw=sample.raw))
        documents = found if isinstance(found, list) else [found]
        words = " ".join((doc.raw or b"").decode() for doc in documents).split()
        unread = tuple(name for doc in documents for name in doc.get("unread") or ())
        expected = (sample.read or sample.text).split()
        if words != expected or unread != sample.unread or any(doc.refused for doc in documents):
            wrong.append((sample.name, sample.producer, " ".join(words), " ".join(expected), unread))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("sample", [each for each in SAMPLES if each.head], ids=lambda each: each.name)
def test_what_is_seen_beside_the_text_is_in_fields(sample: producers.Sample) -> None:
    """Such as the subject of a mail."""
    found = steps.extract_text(languages=None)(Document(sample.name, raw=sample.raw))
    documents = found if isinstance(found, list) else [found]
    known = " ".join(str(value) for doc in documents for value in doc.fields.values())
    assert [word for word in sample.head.split() if word not in known] == []
