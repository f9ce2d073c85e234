"""Benchmarks. Each compares Ferryman with another program on the same machine, so that ratios are comparable.

``python -m bench`` runs all, ``python -m bench table_to_null`` one; ``--quick`` takes a twentieth of the documents.
"""
