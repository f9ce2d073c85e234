"""How fast is it? Everything is measured beside something else on the same machine, so that ratios can be compared.

``python -m bench`` runs all, ``python -m bench table_to_null`` one; ``--quick`` takes a twentieth of the documents.
"""
