"""Dialers, each of which opens the far side of a tunnel."""
