"""Decisions, purely: which agent, when to retry, what a snapshot says."""
