"""Processing of keyed nodes: due documents are grouped by key, and each key's state is updated."""
