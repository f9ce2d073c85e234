"""Runners of tasks: Spark, and processes beside it. Only `spark` and `sessions` know Spark."""
