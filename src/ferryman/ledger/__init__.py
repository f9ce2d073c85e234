"""The account: what is owed, what became of every delivery, and how the two are kept true through any crash."""
