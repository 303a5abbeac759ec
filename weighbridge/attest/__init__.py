"""Signed statements: identities, tokens, transparency logs, firmware images, custody, manifests."""

__all__ = ["chip_link", "manifest"]
