"""A model of a plan that reads a log, keeps state by key, and sends the exports of its keyed node to a destination."""
