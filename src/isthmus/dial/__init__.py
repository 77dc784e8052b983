"""A dial: who may reach what, through which dialer, from which frontend."""
