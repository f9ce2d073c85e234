"""What an operator asks for: run, retry, resolve, migrate, fsck."""
