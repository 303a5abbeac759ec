"""Fixtures that the tests of several packages of the Verifier share."""

from __future__ import annotations

import pytest
from support.chip_logs import make_device

from firmware_sim.device import Device
from weighbridge.attest.identity import CertificateAuthority


@pytest.fixture(scope="module")
def manufacturer() -> CertificateAuthority:
    """The manufacturer of the chips."""
    return CertificateAuthority.create("Manufacturer")


@pytest.fixture(scope="module")
def device(manufacturer: CertificateAuthority, tmp_path_factory: pytest.TempPathFactory) -> Device:
    """A provisioned and booted chip."""
    return make_device(tmp_path_factory.mktemp("chip"), manufacturer)
