"""4. Deliver: executors send committed rows, and note what comes of it."""
