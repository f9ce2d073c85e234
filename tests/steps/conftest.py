"""Steps by themselves, and some on the engine."""

from tests.support.plan_world import net, place, trial  # noqa: F401 - fixtures
