"""The intake queue's consumers: one a state, and the plan that documents of jobs run through."""

from ferryman.service.serve import Serving, on_spark, serve

__all__ = ["Serving", "on_spark", "serve"]
