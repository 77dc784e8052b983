"""The SNI router: one port for many hosted control planes, told apart by name."""
