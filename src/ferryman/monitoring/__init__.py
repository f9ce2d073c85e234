"""Metrics, spans and lineage events of runs, for other programs. Nothing here slows a run or makes it fail.

Each has a thread of its own. What cannot be written or sent is said once, and the run goes on; at its end it waits for
spans and lineage events ``limits.MONITORING_END_S`` seconds at most.
"""
