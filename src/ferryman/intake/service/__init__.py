"""Consumers of the intake queue, one for each state, and the plan that documents of jobs run through."""

from ferryman.intake.service.serve import on_spark, serve
from ferryman.intake.service.stages import Serving

__all__ = ["Serving", "on_spark", "serve"]
