"""What both ends of TraceIngest.Stream agree on beside the messages."""

from __future__ import annotations

REFUSED_AFTER = "refused-after-seq"
"""Trailing metadata of a stream that ends with INVALID_ARGUMENT because of a message that will never be taken: the seq
of the one before it, 0 when it was the first behind Hello."""
