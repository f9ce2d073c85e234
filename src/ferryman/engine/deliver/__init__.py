"""4. Deliver: executors send committed rows, and record the result of each."""
