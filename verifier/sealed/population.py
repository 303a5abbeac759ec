"""Makes the population that both parties agree on, of a registry: whom a sealed inspection may draw."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor

from cryptography.x509 import Certificate

from verifier.contact.clients import ChipClient
from verifier.contact.witness import Witness
from verifier.model.agreed_population import AgreedPopulation
from verifier.registry import Registry
from weighbridge.attest.identity import Credentials
from weighbridge.attest.tokens import verify
from weighbridge.core.errors import WeighbridgeError

_AT_A_TIME = 8


def population_of(
    registry: Registry, witness: Witness, credentials: Credentials, manufacturer: Certificate
) -> AgreedPopulation:
    """Returns the chips that can be drawn, each with the digest of its IDevID certificate.

    A certificate is the one in the newest entry that is held of the chip's log. Chips of whose logs nothing is held are
    asked; those that do not answer have none.

    Args:
        registry: Where the chips are.
        witness: What is held of their logs.
        credentials: The Verifier's own.
        manufacturer: Root certificate that device identities must lead to.

    Raises:
        UsageError: There are no chips.
    """

    def certificate(ueid: bytes) -> tuple[bytes, bytes]:
        size = witness.held(ueid).size
        try:
            if size:
                (newest,) = witness.entries(ueid, size - 1, size)
                return ueid, verify(newest, manufacturer).identity.device
            with ChipClient(registry.chip(ueid).address, credentials, ueid) as client:
                found = client.identity(secrets.token_bytes(32), manufacturer).identity
        except WeighbridgeError:
            return ueid, b""
        return ueid, found.device if found.ueid == ueid else b""

    with ThreadPoolExecutor(max_workers=_AT_A_TIME, thread_name_prefix="population") as pool:
        return AgreedPopulation.of(pool.map(certificate, [member.ueid for member in registry.population()]))
