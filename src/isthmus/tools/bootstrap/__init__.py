"""What a new node needs to reach its control plane, and whether it does."""
