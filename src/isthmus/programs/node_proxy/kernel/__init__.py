"""Brings rules into the kernel and keeps them there, and asks this host what rules depend on."""
