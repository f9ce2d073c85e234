"""Documents for questions of words and vectors at once, and what must be found among them."""

from __future__ import annotations

from ferryman.destinations.vectors import VectorDestination
from ferryman.testing.destinations import delivery

TALES = [
    delivery("both", 1, "a whale in the sea", {"vector": [1, 0, 0, 0], "team": "a"}),
    delivery("near", 2, "a ship on the water", {"vector": [1, 0.1, 0, 0], "team": "a"}),
    delivery("words", 3, "a whale on a table", {"vector": [-1, 0, 0, 0], "team": "b"}),
    delivery("neither", 4, "a loaf of bread", {"vector": [0, 0, 1, 0], "team": "b"}),
]


def assert_hybrid(destination: VectorDestination) -> None:
    """Assert that questions of words and vectors find what they must among ``TALES``."""
    assert destination.has_full_text
    found = destination.hybrid("whale", "vector", [1, 0, 0, 0], 4)
    assert [hit.id for hit in found][:1] == ["both"], found
    assert {hit.id for hit in found[1:3]} == {"near", "words"}, found
    assert all(hit.score and hit.text and hit.fields for hit in found), found
    assert [h.id for h in destination.hybrid("whale", "vector", [1, 0, 0, 0], 1)] == ["both"]
    assert {h.id for h in destination.hybrid("whale", "vector", [1, 0, 0, 0], 9, {"team": "b"})} == {"words", "neither"}
    assert [h.id for h in destination.hybrid("", "vector", [1, 0, 0, 0], 2)] == ["both", "near"]
