"""Preview: what the next run would do with some documents."""
