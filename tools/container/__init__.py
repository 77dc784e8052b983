"""Builds the image without a container engine: layers as in the Containerfile, and an archive."""
