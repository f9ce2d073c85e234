"""Says why documents wait that an operator has asked for again: nothing lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferryman.cli.terminal import say
from ferryman.storage.files import StatePath

if TYPE_CHECKING:
    from ferryman.plan import Plan


def say_unread(plan: Plan, root: StatePath) -> None:
    """A line a source of which documents wait; see ``account.unread``."""
    from ferryman import account

    advice = ways_back(plan)
    for name, (documents, example) in account.unread(root, plan).items() if advice else ():
        many = f"{documents} documents wait until they are listed again, such as"
        one = "1 document waits until it is listed again:"
        say(f"source {name}: {many if documents > 1 else one} {example}. {advice[name]}")


def ways_back(plan: Plan) -> dict[str, str]:
    """Source -> how a document comes again that it does not list any more; of those that list only work."""
    from ferryman.plan import sources_of

    sources = [n for n in sources_of(plan.nodes) if not n.source.lists_all]
    return {n.name: n.source.comes_again for n in sources}
