"""A model of a plan that reads a log by position and appends to two queues: its outputs and its error messages."""
