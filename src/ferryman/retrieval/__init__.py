"""Questions to an index that a plan has filled: search by words and meaning, measures of it, and tools for
assistants."""
