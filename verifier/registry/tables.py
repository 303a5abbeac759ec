"""Tables of the chip registry, and those of inspections."""

from __future__ import annotations

from sqlalchemy import ForeignKey, text
from sqlalchemy.orm import Mapped, mapped_column

from verifier.database import Base


class ChipRow(Base):
    """One registered chip; see `verifier.registry.Chip`."""

    __tablename__ = "chips"
    ueid: Mapped[bytes] = mapped_column(primary_key=True)
    address: Mapped[str]
    prover_address: Mapped[str]
    owner: Mapped[str]
    site: Mapped[str]
    chip_type: Mapped[str]
    registered_at: Mapped[str]
    witnessed_size: Mapped[int] = mapped_column(default=0)
    witnessed_last: Mapped[bytes] = mapped_column(default=b"")
    state: Mapped[str] = mapped_column(default="installed", server_default="installed")
    maker: Mapped[str] = mapped_column(default="", server_default="")
    since_s: Mapped[int] = mapped_column(default=0, server_default="0")
    latest_s: Mapped[int] = mapped_column(default=0, server_default="0")
    history: Mapped[bytes] = mapped_column(default=b"", server_default=text("''"))
    """Places of the entries of the registry's log that list the chip or speak of it, 8 bytes each, big endian."""


class LogHeadRow(Base):
    """How long the registry's log is. One row; whoever appends updates it first, and so waits for others."""

    __tablename__ = "registry_log_head"
    id: Mapped[int] = mapped_column(primary_key=True)
    size: Mapped[int]
    name: Mapped[str] = mapped_column(default="", server_default="")
    """The registry's name: the origin of its checkpoints; empty until it is opened with a key."""


class LogEntryRow(Base):
    """One entry of the registry's log; see `verifier.registry.entries`."""

    __tablename__ = "registry_log"
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    data: Mapped[bytes]
    digest: Mapped[bytes | None] = mapped_column(unique=True)
    """Of what a statement signs, so that none is logged twice; None for the registry's own entries."""


class PartyRow(Base):
    """What the registry declared about a party from some place of its log on."""

    __tablename__ = "registry_parties"
    name: Mapped[str] = mapped_column(primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)
    roles: Mapped[str]
    key: Mapped[bytes]


class ContradictionRow(Base):
    """Something in a chip's history that cannot be; see `verifier.registry.transitions.Contradiction`."""

    __tablename__ = "registry_contradictions"
    ueid: Mapped[bytes] = mapped_column(ForeignKey("chips.ueid"), primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)
    reason: Mapped[str] = mapped_column(primary_key=True)
    expected: Mapped[str]
    found: Mapped[str]


class InspectionRow(Base):
    """One inspection; see `verifier.registry.InspectionRecord`."""

    __tablename__ = "inspections"
    id: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[str]
    seed: Mapped[bytes]
    plan: Mapped[str]
    stage: Mapped[str]
    report: Mapped[str | None]


class SampledRow(Base):
    """One chip of an inspection's draw."""

    __tablename__ = "sampled"
    inspection: Mapped[str] = mapped_column(ForeignKey("inspections.id"), primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)
    ueid: Mapped[bytes] = mapped_column(ForeignKey("chips.ueid"))
