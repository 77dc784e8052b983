"""Rules for nftables, as values and text."""
