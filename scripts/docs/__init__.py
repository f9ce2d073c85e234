"""Parts of the docs that are generated from the code: pictures, tables, signatures, messages.

``python -m scripts.docs`` writes them.
"""
