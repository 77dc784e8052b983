"""One small module for each target; see run.py."""
