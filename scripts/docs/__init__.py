"""What the docs take from the code: pictures, tables, signatures, messages.

``python -m scripts.docs`` writes them again.
"""
