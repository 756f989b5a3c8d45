"""The public client API: `Client`, its sync twin `SyncClient`, and their errors."""

from trunkline.client.client import Client
from trunkline.client.sync.client import SyncClient
from trunkline.codec import InvalidBody
from trunkline.errors import LeaseLost, TransactionMisuse

__all__ = ["Client", "InvalidBody", "LeaseLost", "SyncClient", "TransactionMisuse"]
