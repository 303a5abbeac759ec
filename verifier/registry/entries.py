"""The entries of the registry's log: statements of parties, and what the registry itself says.

An entry is CBOR: [time of receipt in seconds since 1970, form, content].

    statement   the bytes of a custody statement (`weighbridge.attest.custody_statements`)
    listed      the registry lists chips: rows [ueid, state, owner, site, type, address, Prover's address, name]
    addressed   the registry corrects addresses and names: rows [ueid, address, Prover's address, name]
    party       the registry declares a party: [name, [roles], public key]; without roles, it is withdrawn
    opened      the registry's name and the Ed25519 key that signs its checkpoints

Rows of chips without a name end with the Prover's address.

So a reader of the log can work out which chips there are, who answers for each, and why.
docs/formats/custody-events.md has the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from verifier.registry.transitions import STATES
from weighbridge.attest.custody_statements import (
    MAX_TEXT,
    TIME_END,
    UEID_SIZES,
    CustodyError,
    Signed,
    decode_key,
    is_name,
    read,
)
from weighbridge.attest.tiles import MAX_ENTRY_BYTES
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError

ROLES = ("manufacturer", "owner", "inspector")
"""What a party can be; it may be several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """A chip as the registry lists it.

    Attributes:
        ueid: Its identity, 17 to 33 bytes.
        state: What happened to it last, as far as the registry was told.
        owner: Who answers for it.
        site: Where it is.
        chip_type: Its model.
        address: `host:port` of its ChipService; empty if there is none.
        prover_address: `host:port` of the ProverService that answers for it; empty if there is none.
        name: What the registry calls it; empty if it has no name.
    """

    ueid: bytes
    state: str
    owner: str
    site: str
    chip_type: str
    address: str
    prover_address: str
    name: str = ""

    def row(self) -> list[bytes | str]:
        """Returns the chip as an entry has it."""
        row: list[bytes | str] = [
            self.ueid,
            self.state,
            self.owner,
            self.site,
            self.chip_type,
            self.address,
            self.prover_address,
        ]
        return [*row, self.name] if self.name else row


@dataclass(frozen=True, kw_only=True, slots=True)
class Party:
    """Who may sign statements.

    Attributes:
        name: Lower-case letters, digits and hyphens.
        roles: Of `ROLES`, in that order; empty once the party was withdrawn.
        key: Public key as SubjectPublicKeyInfo (DER); P-384 or Ed25519.
    """

    name: str
    roles: tuple[str, ...]
    key: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """The registry's name and key.

    Attributes:
        name: Origin of its log.
        key: Ed25519 public key, 32 bytes.
    """

    name: str
    key: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Addressed:
    """New addresses and the name of a chip; see `Listing`."""

    ueid: bytes
    address: str
    prover_address: str
    name: str = ""

    def row(self) -> list[bytes | str]:
        """Returns the chip as an entry has it."""
        row: list[bytes | str] = [self.ueid, self.address, self.prover_address]
        return [*row, self.name] if self.name else row


_Row = TypeVar("_Row", Listing, Addressed)
Content = Signed | Party | Opened | tuple[Listing, ...] | tuple[Addressed, ...]


def statement_entry(at_s: int, data: bytes) -> bytes:
    """Returns the entry of a party's statement."""
    return cbor([at_s, "statement", data])


def party_entry(at_s: int, party: Party) -> bytes:
    """Returns the entry that declares a party."""
    return cbor([at_s, "party", [party.name, list(party.roles), party.key]])


def opened_entry(at_s: int, opened: Opened) -> bytes:
    """Returns the entry that names the registry and its key."""
    return cbor([at_s, "opened", [opened.name, opened.key]])


def listed_entries(at_s: int, chips: Sequence[Listing]) -> Iterator[tuple[bytes, Sequence[Listing]]]:
    """Yields entries that list chips, as few as the size of an entry allows, each with the chips that it lists."""
    return _entries(at_s, "listed", chips)


def addressed_entries(at_s: int, chips: Sequence[Addressed]) -> Iterator[tuple[bytes, Sequence[Addressed]]]:
    """Yields entries that correct addresses of chips, each with those chips."""
    return _entries(at_s, "addressed", chips)


def _entries(at_s: int, form: str, chips: Sequence[_Row]) -> Iterator[tuple[bytes, Sequence[_Row]]]:
    if not chips:
        return
    data = cbor([at_s, form, [chip.row() for chip in chips]])
    if len(data) <= MAX_ENTRY_BYTES:
        yield data, chips
        return
    middle = len(chips) // 2  # one row always fits: its texts have limits
    yield from _entries(at_s, form, chips[:middle])
    yield from _entries(at_s, form, chips[middle:])


def decode(entry: bytes) -> tuple[int, Content]:
    """Reads an entry: (time of receipt in seconds since 1970, content); a statement's signatures are not verified.

    Raises:
        CustodyError: It is no entry of a registry.
    """
    try:
        raw = decode_cbor(entry)
        at_s, form, content = raw
        if type(at_s) is not int or not 0 <= at_s < TIME_END or len(entry) > MAX_ENTRY_BYTES:
            raise ValueError("no time of receipt")
        if form == "statement" and type(content) is bytes:
            return at_s, read(content)
        if form == "party":
            return at_s, check_party(Party(name=content[0], roles=tuple(content[1]), key=_third(content)))
        if form == "opened" and len(content) == 2 and type(content[1]) is bytes and len(content[1]) == 32:
            _texts(content[0])
            return at_s, Opened(name=content[0], key=content[1])
        if form == "listed" and content:
            return at_s, tuple(_listing(*row) for row in content)
        if form == "addressed" and content:
            return at_s, tuple(_addressed(*row) for row in content)
    except (TypeError, ValueError, LookupError, FormatError) as error:
        raise CustodyError("This is no entry of a registry's log; fetch the log again.") from error
    raise CustodyError("This is no entry of a registry's log; fetch the log again.")


def check_party(party: Party) -> Party:
    """Returns a party if it can be declared.

    Raises:
        CustodyError: The name, a role or the key is not one that a party can have.
    """
    if not is_name(party.name):
        raise CustodyError(f"{party.name!r} cannot name a party; use lower-case letters, digits and hyphens.")
    if party.roles != tuple(role for role in ROLES if role in party.roles):
        raise CustodyError(f"A party's roles are some of {', '.join(ROLES)}, in this order.")
    if type(party.key) is not bytes:
        raise CustodyError("A party's key must be an ECDSA key on P-384 or an Ed25519 key; have another made.")
    decode_key(party.key)
    return party


def _third(content: Any) -> bytes:
    _, _, key = content
    return key  # type: ignore[no-any-return]  # check_party looks at it


def _listing(
    ueid: bytes, state: str, owner: str, site: str, chip_type: str, address: str, prover_address: str, *name: str
) -> Listing:
    _ueid(ueid)
    _texts(owner, site, chip_type, address, prover_address, *name)
    if state not in STATES:
        raise ValueError("no state of a chip")
    return Listing(
        ueid=ueid,
        state=state,
        owner=owner,
        site=site,
        chip_type=chip_type,
        address=address,
        prover_address=prover_address,
        name=_name(name),
    )


def _addressed(ueid: bytes, address: str, prover_address: str, *name: str) -> Addressed:
    _ueid(ueid)
    _texts(address, prover_address, *name)
    return Addressed(ueid=ueid, address=address, prover_address=prover_address, name=_name(name))


def _name(last: tuple[str, ...]) -> str:
    """Returns the name at the end of a row; a chip without one has none there, so that a row has one form."""
    if len(last) > 1 or last == ("",):
        raise ValueError("no row of a chip")
    return last[0] if last else ""


def _ueid(value: object) -> None:
    least, most = UEID_SIZES
    if type(value) is not bytes or not least <= len(value) <= most:
        raise ValueError("no UEID")


def _texts(*values: object) -> None:
    if not all(type(value) is str and len(value) <= MAX_TEXT + 60 and value.isprintable() for value in values):
        raise ValueError("no text on one line")
