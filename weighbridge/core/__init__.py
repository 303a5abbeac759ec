"""Ground floor: errors, bounded decoding, digests, Merkle trees, durable files, compiled loops and host memory."""

__all__ = ["errors"]
