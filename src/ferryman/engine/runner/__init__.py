"""Runners of tasks: Spark, and helper processes before it has started. Only `spark` and `sessions` know Spark."""
