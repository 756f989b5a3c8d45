"""What an application imports."""

from trunkline.client.client import Client

__all__ = ["Client"]
