"""Waves: scan, transform, commit, deliver, settle. The only part that knows Spark, and only in ``runner``."""
