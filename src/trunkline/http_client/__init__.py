"""A client for the HTTP server: the common methods of `Client`, with the same names, records and errors.

For programs that can reach the server but not its database. Requires `pip install 'trunkline[http]'`.
"""

from trunkline.http_client.client import HttpClient

__all__ = ["HttpClient"]
