"""HTTP push: the dispatcher, and what receivers need."""

from trunkline.push.receiver import Received, Refused, Verifier

__all__ = ["Received", "Refused", "Verifier"]
