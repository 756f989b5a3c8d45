"""A client that speaks HTTP to a server: the everyday methods of `Client`, with the same names, records and errors.

For programs that may reach the server and not its database. Needs `pip install 'trunkline[http]'`.
"""

from trunkline.http_client.client import HttpClient
from trunkline.http_client.consuming import HttpBatch, HttpDeliveries, HttpDelivery

__all__ = ["HttpBatch", "HttpClient", "HttpDeliveries", "HttpDelivery"]
