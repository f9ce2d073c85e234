"""Many documents of one task on their way at once, for steps that take batches or run several calls at a time."""
