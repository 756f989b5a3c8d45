"""Errors that only a client raises."""

from __future__ import annotations

from trunkline.errors import Conflict


class LeaseLost(Conflict):
    """The lease ended or was replaced before the transaction committed, so the transaction was rolled back."""

    code = "lease_lost"


class TransactionMisuse(Conflict):
    """A transaction with an ack or commit was ended inside its block or used outside it; nothing was settled."""

    code = "transaction_misuse"
