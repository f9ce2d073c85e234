"""Mirrors of the ledger in the tables of JesterJ's documents about fault tolerance, in Cassandra or in files.

A mirror reads the ledger as any reader does, and keeps its own position in it. It never holds up a run, whatever
becomes of it.
"""
