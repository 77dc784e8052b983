"""The audit log: its record, its file, and what is written of each request."""
