"""What programs say of themselves, as values: snapshots, histories, and how they merge."""
