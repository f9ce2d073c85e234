"""Keyed nodes at work: their due documents are grouped by key, and each key's state is brought up to date."""
