"""The audit log: its records, its file, and when they are written."""
