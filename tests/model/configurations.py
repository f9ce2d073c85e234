"""What is explored: small worlds, each with as many faults as can be looked at in every order within seconds."""

from __future__ import annotations

from typing import Final

from tests.model.state import EXACT, GONE, LEAST, ONCE, Budget, Config, Destination

ONE: Final = (("a",),)
TWO: Final = (("a",), ("b",))
THREE: Final = (("a",), ("b",), ("c",))
CHANGES: Final = (("a", "b", GONE),)
"""One document that changes and then goes."""

FAMILY: Final = (("a", "b"),)
"""One document that changes, and of which children are made."""
TRIES: Final = (("x",), ("y",))
"""Its step makes one child or another, at each try."""

CONFIGURATIONS: Final = (
    # One document, one destination, the most faults: kills, late and doubled workers, two drivers at once.
    *(
        Config(f"kills: {guarantee}", ONE, (Destination(guarantee),), Budget(crashes=2, doubles=1, late=1))
        for guarantee in (ONCE, LEAST, EXACT)
    ),
    Config(
        "two drivers: at-most-once",
        ONE,
        (Destination(ONCE),),
        Budget(crashes=2, rivals=1, doubles=1),
        lock=False,
    ),
    Config(
        "two drivers: at-least-once",
        ONE,
        (Destination(LEAST),),
        Budget(crashes=1, rivals=1, late=1),
        lock=False,
    ),
    Config(
        "two drivers: exactly-once",
        ONE,
        (Destination(EXACT),),
        Budget(rivals=1, doubles=1, late=1),
        lock=False,
    ),
    *(
        Config(
            f"answers: {guarantee}",
            ONE,
            (Destination(guarantee),),
            Budget(crashes=1, doubles=1, late=int(guarantee == ONCE), faults=1),
            answers=("transient", "refused", "raised", "half", "down", "hung"),
        )
        for guarantee in (ONCE, LEAST, EXACT)
    ),
    *(
        Config(
            f"attempts: {guarantee}",
            ONE,
            (Destination(guarantee),),
            Budget(crashes=1, faults=3),
            answers=("transient", "raised", "half", "hung"),
        )
        for guarantee in (ONCE, LEAST, EXACT)
    ),
    Config(
        "two drivers and a change: at-least-once, compares",
        (("a", "b"),),
        (Destination(LEAST, compares=True),),
        Budget(rivals=1, late=1),
        lock=False,
    ),
    # One document that changes and goes: order, revisions, deletes.
    Config(
        "changes: at-least-once, compares",
        CHANGES,
        (Destination(LEAST, compares=True),),
        Budget(crashes=1, faults=1),
        answers=("half", "hung"),
    ),
    Config("changes: at-most-once, compares", CHANGES, (Destination(ONCE, compares=True),), Budget(crashes=1, late=1)),
    Config("changes: exactly-once", CHANGES, (Destination(EXACT),), Budget(crashes=1, doubles=1)),
    Config(
        "order: at-least-once, does not compare",
        CHANGES,
        (Destination(LEAST),),
        Budget(faults=3),
        answers=("transient", "raised", "half", "down", "hung"),
        attempts=3,
    ),
    # Chunks of two rows, of which one fails.
    *(
        Config(
            f"chunks: {guarantee}",
            TWO,
            (Destination(guarantee),),
            Budget(crashes=1, late=int(guarantee == ONCE), faults=2),
            answers=("transient", "refused", "raised", "half", "down"),
            batch=2,
        )
        for guarantee in (ONCE, LEAST, EXACT)
    ),
    Config("two workers of a file", TWO, (Destination(LEAST),), Budget(crashes=1, doubles=1, late=1)),
    Config("slices: a wave a document", TWO, (Destination(EXACT), Destination(ONCE)), Budget(crashes=1), slice=1),
    Config("one chunk after the other: at-least-once", THREE, (Destination(LEAST),), Budget(crashes=1, late=1)),
    # While a wave is delivered and settled, the next one is transformed.
    Config(
        "waves that overlap, of families that fail: exactly-once",
        TWO,
        (Destination(EXACT),),
        Budget(faults=2),
        answers=("step", "away", "transient"),
        slice=1,
        families=TRIES[:1],
    ),
    Config("waves that overlap, two drivers", TWO, (Destination(LEAST),), Budget(rivals=1), lock=False, slice=1),
    Config("waves that overlap, three of them", THREE, (Destination(ONCE),), Budget(crashes=1), slice=1),
    Config(
        "waves that overlap, of changes: exactly-once",
        (("a", "b"), ("c", GONE)),
        (Destination(EXACT),),
        Budget(crashes=1),
        slice=1,
    ),
    Config("waves that overlap: at-least-once", TWO, (Destination(LEAST),), Budget(crashes=1, late=1), slice=1),
    # A document whose step makes other children at each try.
    *(
        Config(
            f"families: {guarantee}",
            ONE,
            (Destination(guarantee, compares=guarantee == LEAST),),
            Budget(crashes=1, doubles=1, faults=1),
            answers=("step",),
            batch=2,
            families=TRIES,
        )
        for guarantee in (ONCE, LEAST, EXACT)
    ),
    Config(
        "families that change: exactly-once",
        (("a", "b", GONE),),
        (Destination(EXACT),),
        Budget(doubles=1, faults=1),
        answers=("step",),
        batch=4,
        families=TRIES,
    ),
    Config(
        "families, order: at-least-once, does not compare",
        ONE,
        (Destination(LEAST),),
        Budget(faults=2),
        answers=("step", "transient"),
        attempts=3,
        families=TRIES,
    ),
    # What a new version does not make again waits for what it makes.
    *(
        Config(
            f"deletes that wait: {guarantee}",
            FAMILY,
            (Destination(guarantee, compares=guarantee != ONCE),),
            Budget(crashes=1, doubles=int(guarantee == ONCE), faults=1),
            answers=("transient", "refused"),
            batch=2,
            families=TRIES,
        )
        for guarantee in (ONCE, LEAST, EXACT)
    ),
    *(
        Config(
            f"deletes that wait, tried again: {guarantee}",
            FAMILY,
            (Destination(guarantee),),
            Budget(faults=2),
            answers=("step", "transient", "half"),
            families=TRIES,
        )
        for guarantee in (ONCE, LEAST, EXACT)
    ),
    # A step or the source is away, and comes back.
    *(
        Config(
            f"outages: {guarantee}",
            (("a", "b", GONE),),
            (Destination(guarantee, compares=guarantee == LEAST),),
            Budget(crashes=1, faults=1),
            answers=("away",),
            batch=4,
            families=TRIES[:1],
        )
        for guarantee in (ONCE, EXACT)
    ),
    Config(
        "outages of a family that changes: exactly-once",
        FAMILY,
        (Destination(EXACT),),
        Budget(faults=2),
        answers=("away", "step"),
        batch=4,
        families=TRIES,
    ),
    # Three documents, two destinations, few faults.
    Config(
        "three documents, two destinations: a fault",
        THREE,
        (Destination(ONCE), Destination(EXACT)),
        Budget(faults=2),
        answers=("transient", "raised", "half", "down"),
    ),
    Config(
        "three documents, two destinations: a kill",
        THREE,
        (Destination(ONCE), Destination(LEAST)),
        Budget(crashes=1),
        batch=2,
    ),
    Config(
        "three documents, two destinations: a kill and a fault",
        THREE,
        (Destination(ONCE), Destination(EXACT)),
        Budget(crashes=1, faults=1),
        answers=("transient", "half"),
        batch=3,
    ),
    Config(
        "three documents, two destinations: changes",
        (("a", "b"), ("c", GONE), ("d",)),
        (Destination(LEAST, compares=True), Destination(EXACT)),
        Budget(faults=1),
        answers=("transient", "down"),
        batch=3,
    ),
)
