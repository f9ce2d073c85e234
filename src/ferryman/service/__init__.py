"""The intake queue's consumers: one a state, and the plan that documents of jobs run through."""

from ferryman.service.serve import on_spark, serve
from ferryman.service.serving import Serving

__all__ = ["Serving", "on_spark", "serve"]
