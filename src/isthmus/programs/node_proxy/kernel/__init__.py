"""Brings the rules of ``isthmus.services`` into the kernel, and keeps them there."""
