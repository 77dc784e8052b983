"""The image without a container engine: its layers, as the Containerfile says, and an archive."""
