"""Plans over durable queues for crash tests, and what must be in their queues."""
