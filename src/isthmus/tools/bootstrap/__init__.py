"""Give a new node what it needs to reach its control plane, and check that it does."""
