"""Ground floor: errors, bounded decoding, digests, Merkle trees, compiled loops and host memory."""

__all__ = ["errors"]
