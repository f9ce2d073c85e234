"""What tests of several folders share: runs in this process, their invariants, destinations that tell what they met."""

NOT_SOON_S = 10**9
"""A backoff of which nothing comes due while a test runs: the wait is drawn by lot between 0 and this."""
