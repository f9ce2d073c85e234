"""1. Scan: executors list, the driver comparisons and cuts."""
