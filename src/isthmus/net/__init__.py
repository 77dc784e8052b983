"""The asyncio plumbing: sockets, TLS, listeners, name resolution. No protocol lives here."""
