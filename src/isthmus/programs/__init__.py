"""One folder for each program that runs for long."""
