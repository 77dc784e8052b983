"""Rules for iptables, as values and text."""
