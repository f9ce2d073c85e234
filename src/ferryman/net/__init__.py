"""The outside world: URLs, HTTP, what strangers' URLs may reach, databases by URL, faults, paths, archives."""
