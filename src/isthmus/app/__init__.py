"""Settings in, running program out: a folder for each program, and beside them what they share."""
