"""The rule of destinations that keep one row an id."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ferryman.destinations import Delivery, Outcome
from ferryman.destinations.base import LastDelivery, compare
from ferryman.testing.destinations import delete, delivery

deliveries = st.builds(
    lambda id, sequence, deleted: delete(id, sequence) if deleted else delivery(id, sequence),
    st.sampled_from("abc"),
    st.integers(1, 9),
    st.booleans(),
)
chunks = st.lists(deliveries, max_size=12)


def one_by_one(
    chunk: list[Delivery], known: dict[str, LastDelivery]
) -> tuple[dict[int, Outcome], dict[str, LastDelivery]]:
    """The rule as told: by sequence, each against what is there."""
    now, outcomes = dict(known), {}
    for position, d in sorted(enumerate(chunk), key=lambda pair: pair[1].sequence):
        there = now.get(d.id)
        outcomes[position] = Outcome.ok()
        if there is None or (there.hash != d.hash and there.sequence <= d.sequence):
            now[d.id] = LastDelivery(d.sequence, d.hash)
        elif there.hash != d.hash:
            outcomes[position] = Outcome.stale()
    return outcomes, now


@given(chunks, chunks)
def test_a_chunk_is_as_good_as_its_deliveries_one_by_one(before: list[Delivery], chunk: list[Delivery]) -> None:
    """Comparing a chunk at once gives the outcomes and the end that its deliveries would have one at a time."""
    _, known = one_by_one(before, {})
    outcomes, winners = compare(chunk, known)
    expected, end = one_by_one(chunk, known)
    assert dict(enumerate(outcomes)) == expected
    assert known | {id: LastDelivery(d.sequence, d.hash) for id, d in winners.items()} == end


@given(chunks)
def test_comparing_again_finds_nothing_new(chunk: list[Delivery]) -> None:
    """What has just been written has no winners when it comes again."""
    _, winners = compare(chunk, {})
    known = {id: LastDelivery(d.sequence, d.hash) for id, d in winners.items()}
    assert compare(list(winners.values()), known) == ([Outcome.ok()] * len(winners), {})


def test_what_is_known_is_not_changed() -> None:
    """``compare`` is a pure function."""
    known = {"a": LastDelivery(1, "x")}
    compare([delivery("a", 2)], known)
    assert known == {"a": LastDelivery(1, "x")}
