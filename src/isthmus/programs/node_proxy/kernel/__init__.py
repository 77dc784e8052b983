"""Applies rules to the kernel and checks them, and reads what rules need to know of this host."""
