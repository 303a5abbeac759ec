"""`weighbridge inspect case`: the Verifier's part of an inspection that goes on in a sealed worker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weighbridge.cli._inputs import read_file, require_database, write_file
from weighbridge.core.errors import UsageError

_Db = Annotated[str, typer.Option("--db", envvar="WEIGHBRIDGE_DB", help="The registry's SQLite file.")]
_Credentials = Annotated[Path, typer.Option("--credentials", help="Directory of the Verifier's certificate.")]
_Manufacturer = Annotated[Path, typer.Option("--manufacturer", help="PEM file of the chip manufacturer's root.")]


def add(app: typer.Typer) -> None:
    """Adds the commands to a group."""
    app.command()(case)
    app.command()(population)


def population(
    db: _Db,
    credentials: _Credentials,
    manufacturer: _Manufacturer,
    out: Annotated[Path, typer.Option("--out", help="File for the population, for both parties' terms.")],
) -> None:
    """Write down the chips that a sealed inspection may draw, with the digests of their certificates.

    Chips of whose logs the Verifier holds nothing are asked who they are.
    """
    from verifier.contact.witness import Witness
    from verifier.registry import Registry
    from verifier.sealed.population import population_of
    from weighbridge.attest.certificates import load_certificate
    from weighbridge.attest.identity import Credentials

    require_database(db)
    root = load_certificate(read_file(manufacturer))
    registry = Registry(db)
    try:
        found = population_of(registry, Witness(registry, root), Credentials.load(credentials), root)
    finally:
        registry.close()
    write_file(out, found.text)
    unknown = sum(not each for each in found.chips.values())
    print(f"{out} has {len(found)} chips, {unknown} of them without a certificate; its digest is {found.digest.hex()}")


def case(
    agreement: Annotated[Path, typer.Option("--agreement", help="What both parties agreed on about the outcome.")],
    chips: Annotated[Path, typer.Option("--population", help="The chips to draw from, as both agreed on them.")],
    db: _Db,
    cache: Annotated[Path, typer.Option("--cache", help="The Verifier's directory for transcripts.")],
    credentials: _Credentials,
    manufacturer: _Manufacturer,
    firmware: Annotated[list[Path], typer.Option("--firmware", help="Firmware image that chips may run; repeatable.")],
    out: Annotated[Path, typer.Option("--out", help="File for the case, for the Prover.")],
    rule_set: Annotated[Path | None, typer.Option("--rule-set", help="Signed rule set that is applied.")] = None,
    parties: Annotated[Path | None, typer.Option("--parties", help="Keys of the parties that sign it.")] = None,
    policy: Annotated[Path | None, typer.Option("--policy", help="Severities and the ledger's settings.")] = None,
    beacon: Annotated[
        Path | None, typer.Option("--beacon", help="Directory with the value that the terms name: public/ROUND.")
    ] = None,
    max_clock_speed: Annotated[
        float, typer.Option("--max-clock-speed", help="Above 1 for simulated chips only.", min=1)
    ] = 1.0,
    allow_forced: Annotated[
        bool, typer.Option("--allow-forced", help="Accept chips whose workload may ask for interrupts: in tests.")
    ] = False,
) -> None:
    """Draw chips by the agreement's nonce and beacon, read their logs, and write the case of a sealed inspection.

    The Verifier's service must not run meanwhile. Of chips, this reads what they signed; of the Prover, nothing.
    """
    from verifier.contact.witness import Witness, load_signer
    from verifier.model.agreed_population import LIMIT, parse
    from verifier.model.reference_values import ChipLimits, FirmwarePolicy
    from verifier.registry import Registry
    from verifier.sealed.making import Inspectorate, make
    from verifier.store.cache import Cache
    from verifier.store.exclusive_lock import claim
    from verifier.store.sealing import WITNESS_KEY
    from weighbridge.attest.beacon import MAX_BYTES
    from weighbridge.attest.certificates import load_certificate
    from weighbridge.attest.identity import Credentials
    from weighbridge.attest.outcome_agreement import AGREEMENT_LIMIT, Agreement

    if "://" in db:
        raise UsageError("a case is made from a registry in an SQLite file; name that file")
    require_database(db)
    agreed = Agreement.from_cbor(read_file(agreement, max_bytes=AGREEMENT_LIMIT))
    root = load_certificate(read_file(manufacturer))
    drawn_from = parse(read_file(chips, max_bytes=LIMIT))
    value = b"" if beacon is None else read_file(beacon / "public" / str(agreed.terms.round), max_bytes=MAX_BYTES)
    limits = ChipLimits(clock_speed=max_clock_speed, forced=allow_forced)
    registry = Registry(db)
    try:
        with claim(registry.database):
            key = Path(db + WITNESS_KEY)
            witness = Witness(registry, root, load_signer(key) if key.exists() else None)
            by = Inspectorate(
                registry=registry, cache=Cache(cache), credentials=Credentials.load(credentials), manufacturer=root,
                firmware=FirmwarePolicy.of(firmware, root, limits=limits), witness=witness, rules=rule_set,
                parties=parties, policy=policy,
            )  # fmt: skip
            made = make(agreed, drawn_from, by, beacon=value)
            data = made.to_cbor()
    finally:
        registry.close()
    write_file(out, data)
    unreadable = sum(not log.entries for log in made.logs)
    print(f"{out} asks about {len(made.logs)} of {len(made.agreed)} chips, {unreadable} of which could not be read")
