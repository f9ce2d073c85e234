"""The shapes of what is stored: statuses, columns, events, families, delivery hashes. Nothing here does I/O."""
