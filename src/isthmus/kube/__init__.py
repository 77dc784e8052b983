"""The Kubernetes API: Leases, token reviews, and the client they go through."""
