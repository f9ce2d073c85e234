"""A destination at a URL: deliveries are posted to it."""

from ferryman.destinations.webhook.destination import Webhook

__all__ = ["Webhook"]
