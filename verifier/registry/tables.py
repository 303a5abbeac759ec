"""Tables of the chip registry, and those of inspections."""

from __future__ import annotations

from sqlalchemy import ForeignKey
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
