"""What tests of several folders share: runs in this process, their invariants, destinations that tell what they met."""
