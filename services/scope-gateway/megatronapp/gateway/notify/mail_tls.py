"""How a mail server is spoken to."""

from __future__ import annotations

from enum import StrEnum


class MailTls(StrEnum):
    STARTTLS = "starttls"
    """The connection is encrypted before anything else is said (port 587); a server that can't is refused."""
    TLS = "tls"
    """From its first byte (port 465)."""
    NONE = "none"
    """A relay on the same machine; no password is sent."""
