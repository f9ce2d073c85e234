"""Documents of the scenario that do not simply arrive."""

BAD, REFUSED, SECOND = "bad.txt", "refused.txt", "second.txt"
