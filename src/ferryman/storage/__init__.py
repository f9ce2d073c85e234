"""Delta tables and durable files: the only place that knows about fsync."""
