"""3. Commit: one transaction names what a wave staged."""
