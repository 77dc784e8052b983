"""Metrics, logging and the views that operators read."""
