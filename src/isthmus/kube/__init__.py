"""The Kubernetes API: Leases, token reviews, and their client."""
