"""The tables of the Verifier's database, all in one place: what a revision of the database is made from.

The modules that work with a table say what its rows mean. After a change here, write a revision; see
`verifier.store.revision`.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, Integer, MetaData, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Tables of the Verifier's database.

    Constraints have names, so that a migration can drop what it did not create. Integers have 64 bits (SQLite's always
    do, and its row numbers must be declared as plain integers).
    """

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {int: BigInteger().with_variant(Integer(), "sqlite")}  # noqa: RUF012 (SQLAlchemy reads it)


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
    name: Mapped[str] = mapped_column(default="", server_default="")
    since_s: Mapped[int] = mapped_column(default=0, server_default="0")
    latest_s: Mapped[int] = mapped_column(default=0, server_default="0")
    history: Mapped[bytes] = mapped_column(default=b"", server_default=text("''"))
    """Places of the entries of the registry's log that list the chip or speak of it, 8 bytes each, big endian."""


class LogHeadRow(Base):
    """How long the registry's log is. One row; every writer updates it first, and so waits for others."""

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
    summary: Mapped[str | None]
    """A few figures of the report as JSON; reports are large. None of reports from before there were summaries."""


class SampledRow(Base):
    """One chip of an inspection's draw."""

    __tablename__ = "sampled"
    inspection: Mapped[str] = mapped_column(ForeignKey("inspections.id"), primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)
    ueid: Mapped[bytes] = mapped_column(ForeignKey("chips.ueid"))


class HeldLogRow(Base):
    """The log of one chip as far as the witness holds it."""

    __tablename__ = "held_logs"
    ueid: Mapped[bytes] = mapped_column(ForeignKey("chips.ueid"), primary_key=True)
    size: Mapped[int]
    root: Mapped[bytes]
    checkpoint: Mapped[bytes]
    chip_ms: Mapped[int]
    read_ms: Mapped[int]


class HeldEntryRow(Base):
    """One entry of a log that the witness holds."""

    __tablename__ = "held_entries"
    ueid: Mapped[bytes] = mapped_column(ForeignKey("chips.ueid"), primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes]


class AnchorRow(Base):
    """A head of a chip, and when the Verifier asked for it and had it; see `verifier.contact.anchors`."""

    __tablename__ = "anchors"
    ueid: Mapped[bytes] = mapped_column(ForeignKey("chips.ueid"), primary_key=True)
    boot_count: Mapped[int] = mapped_column(primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)
    token: Mapped[bytes]
    asked_ms: Mapped[int]
    read_ms: Mapped[int]


class ContactRow(Base):
    """When the witness first held the entries below a size; see `verifier.model.facts.Contact`."""

    __tablename__ = "contacts"
    ueid: Mapped[bytes] = mapped_column(ForeignKey("chips.ueid"), primary_key=True)
    size: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    time_s: Mapped[int]
    chip_ms: Mapped[int]


class LogKeyRow(Base):
    """A key that a chip has signed a held checkpoint with."""

    __tablename__ = "log_keys"
    ueid: Mapped[bytes] = mapped_column(ForeignKey("chips.ueid"), primary_key=True)
    key: Mapped[bytes] = mapped_column(primary_key=True)


class RefusedCheckpointRow(Base):
    """A checkpoint that the witness refused; see `verifier.contact.witness.Refused`."""

    __tablename__ = "refused_checkpoints"
    id: Mapped[int] = mapped_column(primary_key=True)
    ueid: Mapped[bytes] = mapped_column(ForeignKey("chips.ueid"))
    reason: Mapped[str]
    checkpoint: Mapped[bytes]
    token: Mapped[bytes]
    held: Mapped[bytes]
    read_ms: Mapped[int]


class UnitRow(Base):
    """The outcome of one unit of an inspection's work."""

    __tablename__ = "inspection_units"
    inspection: Mapped[str] = mapped_column(ForeignKey("inspections.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[bytes]
    object: Mapped[bytes]


class ProgressLineRow(Base):
    """One line of an inspection's progress."""

    __tablename__ = "inspection_progress"
    inspection: Mapped[str] = mapped_column(ForeignKey("inspections.id"), primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)
    stage: Mapped[str]
    done: Mapped[int]
    total: Mapped[int]
    message: Mapped[str]


class AttemptRow(Base):
    """Attempts at an inspection that got no further, and how many units were done before the last."""

    __tablename__ = "inspection_attempts"
    inspection: Mapped[str] = mapped_column(ForeignKey("inspections.id"), primary_key=True)
    attempts: Mapped[int]
    units: Mapped[int]


class OwnLogEntryRow(Base):
    """One entry of the Verifier's own log, with the checkpoint above it."""

    __tablename__ = "verifier_log"
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    data: Mapped[bytes]
    checkpoint: Mapped[bytes]


class DrawRow(Base):
    """One draw of the past; see `verifier.draw.rolling_periods.Past`."""

    __tablename__ = "draws"
    inspection: Mapped[str] = mapped_column(ForeignKey("inspections.id"), primary_key=True)
    drawn_ms: Mapped[int]
    aim: Mapped[str]
    record: Mapped[bytes]
    outcome: Mapped[str | None]


class RegenerationRow(Base):
    """A request for rounding logs, and how many came; see `verifier.contact.supplement_records`."""

    __tablename__ = "regenerations"
    inspection: Mapped[str] = mapped_column(ForeignKey("inspections.id"), primary_key=True)
    prover: Mapped[str] = mapped_column(primary_key=True)
    transcript: Mapped[str] = mapped_column(primary_key=True)
    begin: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    wanted: Mapped[int]
    came: Mapped[int]


class SupplementRow(Base):
    """What a Prover signed about the rounding log of one step; see `verifier.contact.supplement_records`."""

    __tablename__ = "supplements"
    draft: Mapped[bytes] = mapped_column(primary_key=True)
    signer: Mapped[bytes] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    rounding: Mapped[bytes] = mapped_column(primary_key=True)
    envelope: Mapped[bytes]


class SupplementTreeRow(Base):
    """What a Prover signed about another tree of a step, beside the log and the tree that it signed first."""

    __tablename__ = "supplement_trees"
    draft: Mapped[bytes] = mapped_column(primary_key=True)
    signer: Mapped[bytes] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    rounding: Mapped[bytes] = mapped_column(primary_key=True)
    tree: Mapped[bytes] = mapped_column(primary_key=True)
    envelope: Mapped[bytes]
