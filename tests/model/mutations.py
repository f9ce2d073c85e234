"""Faults put into the protocol on purpose. Each must break a promise, or the model would prove nothing.

A mutation is a name in ``Config.mutation``; the functions of the protocol ask for it where they would do otherwise.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.model.configurations import CHANGES, FAMILY, ONE, THREE, TRIES, TWO
from tests.model.state import EXACT, LEAST, ONCE, Budget, Config, Destination


class Mutation(NamedTuple):
    """One fault, the smallest world that shows it, and the invariant that it breaks first."""

    name: str
    breaks: str
    world: Config

    @property
    def config(self) -> Config:
        return self.world._replace(mutation=self.name, name=self.name)


def _one(guarantee: str, budget: Budget, answers: tuple[str, ...] = (), *, lock: bool = True) -> Config:
    return Config("", ONE, (Destination(guarantee),), budget, answers, lock=lock)


def _ahead(budget: Budget) -> Config:
    """Two waves of a listing."""
    return Config("", TWO, (Destination(LEAST),), budget, slice=1)


def _family(guarantee: str, faults: int = 1, *answers: str) -> Config:
    return Config("", ONE, (Destination(guarantee),), Budget(faults=faults), ("step", *answers), families=TRIES)


MUTATIONS: Final = (
    Mutation("the commit is sent before it is synced", "I1", _one(LEAST, Budget(crashes=1))),
    Mutation("a commit does not look at the epoch", "I2", _one(LEAST, Budget(rivals=1), lock=False)),
    Mutation("recovery transforms again", "I3", _one(LEAST, Budget(crashes=1))),
    Mutation("the hash depends on the attempt", "I3", _one(EXACT, Budget(faults=1), ("half",))),
    Mutation("documents are published before the commit", "I9", _one(LEAST, Budget(crashes=1))),
    Mutation("a listing outlives its driver", "I4", _one(LEAST, Budget(crashes=1))),
    Mutation("what was staged ahead outlives its driver", "I4", _ahead(Budget(crashes=1))),
    Mutation("a wave commits before the one before it is settled", "I4", _ahead(Budget())),
    Mutation("the files of both attempts are taken", "I4", _one(LEAST, Budget(doubles=1))),
    Mutation("the outbox is committed before the ledger", "I4", _one(LEAST, Budget(crashes=1))),
    Mutation("the outbox follows the journal, not the ledger", "I4", _one(LEAST, Budget(late=1))),
    Mutation("send before claim", "I5", _one(ONCE, Budget(crashes=1))),
    Mutation("look before claim", "I5", _one(ONCE, Budget(late=1))),
    Mutation("the journal is read before the pass is closed", "I5", _one(ONCE, Budget(late=1))),
    Mutation("the journal is trimmed before the ledger is committed", "I5", _one(ONCE, Budget(crashes=1))),
    Mutation("an exception means nothing took effect", "I5", _one(ONCE, Budget(faults=1), ("half",))),
    Mutation("an unknown chunk is sent again", "I5", _one(ONCE, Budget(crashes=1))),
    Mutation("what was sent counts as delivered", "I6", _one(LEAST, Budget(faults=1), ("hung",))),
    Mutation(
        "what came of a chunk is noted when the next is sent",
        "I6",
        Config("", THREE, (Destination(LEAST),), Budget()),
    ),
    Mutation("exactly-once without storing hashes", "I7", _one(EXACT, Budget(crashes=1))),
    Mutation(
        "a failed chunk is everybody's failure",
        "I8",
        Config("", TWO, (Destination(LEAST),), Budget(faults=1), ("raised",), batch=2),
    ),
    Mutation("every start opens a wave", "I9", _one(LEAST, Budget())),
    Mutation("recovery looks at the ledger only", "I4", _one(LEAST, Budget(crashes=1))),
    Mutation(
        "nothing is held behind an older row",
        "order",
        Config("", CHANGES, (Destination(LEAST),), Budget(faults=1), ("transient",)),
    ),
    Mutation(
        "a call that was given up acts later",
        "order",
        Config("", CHANGES, (Destination(LEAST),), Budget(faults=1), ("hung",)),
    ),
    Mutation("a new version takes nothing back", "I9", Config("", FAMILY, (Destination(EXACT),), families=TRIES)),
    Mutation("a retry takes nothing back", "I9", _family(EXACT)),
    Mutation(
        "an outage forgets what was given",
        "I9",
        Config("", FAMILY, (Destination(EXACT),), Budget(faults=1), ("away",), families=TRIES),
    ),
    Mutation("a delete has the hash of what it takes back", "I4", _family(EXACT)),
    Mutation(
        "no delete waits for the upserts of its family",
        "families",
        Config("", FAMILY, (Destination(EXACT),), Budget(faults=1), ("transient",), families=TRIES),
    ),
    Mutation(
        "what another worker has claimed holds back nothing",
        "families",
        Config("", FAMILY, (Destination(ONCE),), Budget(doubles=1), families=TRIES),
    ),
    Mutation(
        "a family that failed in part takes back",
        "families",
        Config("", FAMILY, (Destination(EXACT),), Budget(faults=1), ("step",), families=TRIES),
    ),
    Mutation("a row waits for older revisions only", "order", _family(LEAST, 2, "transient")),
    Mutation(
        "the sequence is the time of sending",
        "order",
        Config("", CHANGES, (Destination(LEAST, compares=True),), Budget(faults=1), ("hung",)),
    ),
)
