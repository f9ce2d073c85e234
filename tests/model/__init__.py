"""A model of the protocol in plain Python, small enough that every order of its steps is looked at."""
