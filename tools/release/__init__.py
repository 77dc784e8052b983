"""Checks what a release needs and fills dist/: packages, image, bills of materials, digests."""
