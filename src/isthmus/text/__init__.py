"""What is written and read: addresses, patterns, durations, YAML, SVG; and small pure helpers."""
