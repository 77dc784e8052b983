"""Certificates for a trial or a small installation."""
