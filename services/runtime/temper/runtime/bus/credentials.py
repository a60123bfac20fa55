"""How a client proves who it is to the broker, and how it knows the broker."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to prove who we are; all optional, for a server without authentication."""

    token: str | None = field(default=None, repr=False)
    """Shared secret (the embedded broker)."""
    creds_file: Path | None = None
    """NATS credentials file (JWT and seed)."""
    ca_file: Path | None = None
    """Authority of the server's certificate; switches TLS on."""
    cert_file: Path | None = None
    """Our certificate, for mutual TLS."""
    key_file: Path | None = None
    """Its key."""

    def options(self) -> dict[str, Any]:
        """As keyword arguments of `Client.connect`."""
        options: dict[str, Any] = {}
        if self.token:
            options["token"] = self.token
        if self.creds_file:
            options["user_credentials"] = str(self.creds_file)
        if self.ca_file or self.cert_file:
            context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
            if self.cert_file:
                context.load_cert_chain(str(self.cert_file), str(self.key_file) if self.key_file else None)
            options["tls"] = context
        return options
