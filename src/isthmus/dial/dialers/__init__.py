"""Dial: each dialer opens the far side of a tunnel."""
