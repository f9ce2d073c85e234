"""Proof of a plan: runs it on a sample of its documents, breaks something in each round, and compares the ends.

The user's own destinations are never written to: twins stand in their place. A round kills processes, has destinations
misbehave, and so on; then the plan runs again until all is delivered, and sources, ledger and twins must be as after a
run in which nothing went wrong.

1. ``sample``: read some documents of each source, once
2. ``twin_plan``, ``twins``, ``steps``: put twins in place of destinations, watch the steps
3. ``child``, ``rounds``: run it in processes that can be killed, with one of the ``faults`` each
4. ``comparison``: compare what each round has left
5. ``report``: say what was proved, and what was not
"""
