"""1. Scan: executors list, the driver judges and cuts."""
