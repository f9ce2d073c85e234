"""1. Scan: executors list the sources; the driver compares the listing with what is known and splits the changes into
waves."""
