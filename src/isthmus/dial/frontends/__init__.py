"""Accept: each frontend learns from a new connection where it wants to go."""
