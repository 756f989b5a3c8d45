"""Errors that only a client can meet."""

from __future__ import annotations

from trunkline.errors import Conflict


class LeaseLost(Conflict):
    """The lease ended or was replaced, so the work that was to be settled with it was rolled back."""

    code = "lease_lost"


class TransactionMisuse(Conflict):
    """A transaction that carries an ack or a commit was ended inside its block, or used outside it; nothing was settled."""

    code = "transaction_misuse"
