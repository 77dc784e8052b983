"""The state of programs as values: snapshots, histories, and how they merge."""
