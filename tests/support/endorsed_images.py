"""Endorsers, a log of images and its witnesses, for tests."""

from __future__ import annotations

import os

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from weighbridge.attest import tlog
from weighbridge.attest.image_policy import ImagePolicy
from weighbridge.attest.image_release import Endorsed, Release, endorse, joined
from weighbridge.attest.manifest import SigningKey

ENDORSERS = [SigningKey(Ed25519PrivateKey.generate()) for _ in range(3)]
KEYS = tuple(sorted(each.public for each in ENDORSERS))
LOG = tlog.NoteSigner("images.example.org/log", tlog.LOG, os.urandom(32))
WITNESS = tlog.NoteSigner("monitor.example.org", tlog.WITNESS, os.urandom(32))
POLICY = ImagePolicy(LOG.key, (), KEYS, 2)


def release(number: int = 0) -> Release:
    """The release of one image; another for each number."""
    return Release(
        measurement=number.to_bytes(48), version="0.1.0", processor="x86-64-v3", files=13612, size=1_200_000_000
    )


def entry(number: int = 0, signers: int = 2) -> Endorsed:
    """An image that so many of the endorsers signed."""
    return joined(endorse(release(number), each) for each in ENDORSERS[:signers])
