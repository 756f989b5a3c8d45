"""HTTP push: the dispatcher, and signature verification for receivers."""

from trunkline.push.receiver import Received, Refused, Verifier

__all__ = ["Received", "Refused", "Verifier"]
