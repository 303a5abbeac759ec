"""Training data: nests of tensors, digests of single records, and the commitment to a data set and its order.

A commitment made before training fixes every record (a Merkle tree over record digests) and the order of use, so that
the batches of a transcript can be checked record by record without the data set at hand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from torch import Tensor

from weighbridge.core import merkle
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import DIGEST_SIZE, bytes_digest, cbor, record_digest
from weighbridge.core.errors import FormatError, UsageError
from weighbridge.transcript.tensor_file import dtype_name, raw_bytes

__all__ = ["DataCommitment", "OrderSeed", "VerifiableOrder", "permutation"]

T = TypeVar("T")

_MAX_DEPTH = 32
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
"""Of a micro-batch in its step. Python converts no number of thousands of digits."""
_MAX_DRAWS = 1 << 31


class Flat(dict[str, Tensor]):
    """A flattened nest: path to tensor, in the order of the paths.

    Attributes:
        ignored: Paths of leaves that are not tensors, with their type's name; replay does not see them.
    """

    ignored: dict[str, str]

    def __init__(self, tensors: Mapping[str, Tensor], ignored: Mapping[str, str]) -> None:
        super().__init__(sorted(tensors.items()))
        self.ignored = dict(sorted(ignored.items()))


def flatten(nest: Any) -> Flat:
    """Flattens a nest of tensors.

    Args:
        nest: A tensor, or any nest of mappings (also those that only look like one), lists, tuples and dataclasses.
            The tensors themselves are returned, not copies.

    Returns:
        Path to tensor, sorted by path. A path joins keys, indices and field names by dots, e.g. `0.image`; the path
        of a lone tensor is `tensor`.

    Raises:
        UsageError: Two leaves have the same path, or the nest is deeper than 32 levels.
    """
    tensors: dict[str, Tensor] = {}
    ignored: dict[str, str] = {}
    for path, leaf in _leaves(nest, "", 0):
        if path in tensors or path in ignored:
            raise UsageError(f"two parts of the batch have the path {path!r}; rename a key that contains a dot")
        if isinstance(leaf, Tensor):
            tensors[path or "tensor"] = leaf
        else:
            ignored[path or "value"] = type(leaf).__name__
    return Flat(tensors, ignored)


def _leaves(nest: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if not path.isprintable():
        raise UsageError(f"the batch has a key that is not printable: {path[:80]!r}; rename it")
    if depth > _MAX_DEPTH:
        raise UsageError(f"the batch is nested deeper than {_MAX_DEPTH} levels at {path[:80]!r}; pass a flatter one")
    children: Iterable[tuple[Any, Any]]
    if isinstance(nest, Tensor):
        yield path, nest
        return
    if isinstance(nest, Mapping) or (hasattr(nest, "keys") and hasattr(nest, "__getitem__")):
        children = ((key, nest[key]) for key in nest.keys())  # noqa: SIM118 (it may only look like a mapping)
    elif isinstance(nest, list | tuple):
        children = enumerate(nest)
    elif is_dataclass(nest) and not isinstance(nest, type):
        children = ((field.name, getattr(nest, field.name)) for field in fields(nest))
    else:
        yield path, nest
        return
    for key, child in children:
        yield from _leaves(child, f"{path}.{key}" if path else str(key), depth + 1)


def batch_digest(batch: Mapping[str, Tensor], undeclared: Mapping[str, Tensor] | None = None) -> bytes:
    """Returns the 32-byte digest over names, dtypes, shapes and bytes of everything that enters a step from outside.

    Args:
        batch: Path to tensor of the step's batch.
        undeclared: Name to tensor of the values that entered without another origin.
    """
    return record_digest("batch/1", [_describe(batch), _describe(undeclared or {})])


def _describe(flat: Mapping[str, Tensor]) -> list[list[Any]]:
    return [
        [name, dtype_name(tensor.dtype), list(tensor.shape), bytes_digest(raw_bytes(tensor))]
        for name, tensor in sorted(flat.items())
    ]


def record_digests(flat: Mapping[str, Tensor], count: int | None = None) -> list[bytes]:
    """Returns the digest of every record of a batch.

    Record i is row i of every tensor when all tensors have the same size along dimension 0; otherwise, or when that
    size is not `count`, the records are those of the batch's micro-batches one after the other, if these are `count`;
    else the whole batch is one record. A digest covers names, dtypes, row shapes and row bytes, so the digest of a
    record is the same alone and in any batch stacked from such records.

    Args:
        flat: Path to tensor; any device.
        count: Number of records that the caller knows of, if it does.

    Returns:
        32-byte digests; none for a batch without tensors.
    """
    if not flat:
        return []
    rows = {tensor.shape[0] if tensor.dim() else -1 for tensor in flat.values()}
    (shared,) = rows if len(rows) == 1 else (-1,)
    if shared < 0 or count not in (None, shared):
        listed = [] if count is None else [digest for part in micro_batches(flat) for digest in record_digests(part)]
        return listed if listed and len(listed) == count else [record_digest("record/1", _describe(flat))]
    parts = []
    for name, tensor in sorted(flat.items()):
        shape, dtype = list(tensor.shape[1:]), dtype_name(tensor.dtype)
        width = math.prod(shape) * tensor.element_size()
        data = raw_bytes(tensor)
        parts.append(
            [[name, dtype, shape, bytes_digest(data[row * width : (row + 1) * width])] for row in range(shared)]
        )
    return [record_digest("record/1", list(row)) for row in zip(*parts, strict=True)]


def micro_batches(flat: Mapping[str, T]) -> list[dict[str, T]]:
    """Returns the batches of a step that accumulates the gradients of several: of `[a, b]`, what `a` and `b` hold.

    Args:
        flat: Path to tensor, as `flatten` gives it, or to what is known of the tensor.

    Returns:
        Path to tensor of each, at least two; none if the paths are not those of a list of nests.
    """
    parts: dict[int, dict[str, T]] = {}
    for path, tensor in flat.items():
        index, _, rest = path.partition(".")
        if not rest or not _INDEX.fullmatch(index):
            return []
        parts.setdefault(int(index), {})[rest] = tensor
    return [parts[i] for i in range(len(parts))] if len(parts) > 1 and parts.keys() == set(range(len(parts))) else []


@dataclass(frozen=True, slots=True)
class OrderSeed:
    """An order of use that is a fresh permutation of all records in every epoch, derived from a seed.

    Attributes:
        seed: Natural number below 2^64.
        epochs: Number of epochs, at least 1.
    """

    seed: int
    epochs: int

    def __post_init__(self) -> None:
        if type(self.seed) is not int or type(self.epochs) is not int:
            raise UsageError("OrderSeed takes two integers; convert them first")
        if not 0 <= self.seed < 1 << 64 or not 1 <= self.epochs < 1 << 32:
            raise UsageError("OrderSeed takes a seed from 0 to 2^64 - 1 and at least one epoch; choose others")


@dataclass(frozen=True, slots=True)
class VerifiableOrder:
    """An order of use whose seed follows from the data themselves (Choi, Shavit and Duvenaud 2023).

    This rules out grinding: choosing an order first and fitting data to it. One other record, and everything is in
    another order. Only `random` is left to choose, and nothing if a Verifier or a beacon gives it.

    Attributes:
        random: 32 bytes.
        epochs: Number of epochs, at least 1.
    """

    random: bytes
    epochs: int

    def __post_init__(self) -> None:
        if type(self.random) is not bytes or len(self.random) != DIGEST_SIZE:
            raise UsageError(
                f"VerifiableOrder takes {DIGEST_SIZE} random bytes; get them from the Verifier or a beacon"
            )
        OrderSeed(0, self.epochs)  # checks the epochs

    def seed(self, root: bytes, count: int) -> int:
        """Returns the seed of a data set's order: the first 8 bytes of a digest, little endian.

        It is the digest of kind `data-seed/1` over [number of records, root, random].

        Args:
            root: Root over the record digests, as a draft names it (32 bytes).
            count: Number of records.
        """
        digest = record_digest("data-seed/1", [count, root, self.random])
        return int.from_bytes(digest[:8], "little")


def permutation(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """Returns the permutation of 0..count-1 that `seed` gives for `epoch`; the same on every machine and library.

    Fisher-Yates: for i from count-1 down to 1, swap elements i and j, where j is the next 64-bit little-endian word w
    of BLAKE3-XOF over `weighbridge/order/1`, a zero byte and CBOR [seed, epoch, count], reduced modulo i+1; words w at
    or above the largest multiple of i+1 up to 2^64 are skipped, so that every permutation is equally likely.

    Args:
        seed: Natural number below 2^64.
        epoch: Epoch, counted from 0.
        count: Number of records, below 2^31.
    """
    if not 0 <= count < _MAX_DRAWS:
        raise UsageError(f"cannot derive the order of {count} records; pass an explicit order")
    stream = blake3(b"weighbridge/order/1\x00" + cbor([seed, epoch, count]))
    items = list(range(count))
    picks = fair_draws(lambda length: stream.digest(length=length), count)
    for last, pick in zip(range(count - 1, 0, -1), picks.tolist(), strict=True):
        items[last], items[pick] = items[pick], items[last]
    return np.array(items, dtype=np.int64)


def fair_draws(stream: Callable[[int], bytes], count: int) -> NDArray[np.uint64]:
    """Returns one number below n for n = count, count-1, ..., 2, each equally likely if the stream's words are.

    Args:
        stream: Gives the first so many bytes of an endless stream of 64-bit little-endian words.
        count: The first bound.
    """
    bounds = np.arange(count, 1, -1, dtype=np.uint64)
    # 2^64 mod n, as (2^64 - n) mod n in 64 bits. A word w is fair iff w < 2^64 - excess, or excess is 0.
    excess = (np.uint64(0) - bounds) % bounds
    words = np.frombuffer(stream(8 * len(bounds)), dtype="<u8")
    taken = np.empty(len(bounds), dtype=np.uint64)
    done = position = 0
    while done < len(bounds):  # one round, unless a word is skipped: with BLAKE3 less than once in 2^32 words
        if position == len(words):
            words = np.frombuffer(stream(8 * (len(words) + 64)), dtype="<u8")
        length = min(len(bounds) - done, len(words) - position)
        chunk, rest = words[position : position + length], excess[done : done + length]
        fair = (rest == 0) | (chunk < np.uint64(0) - rest)
        good = length if fair.all() else int(np.argmin(fair))
        taken[done : done + good] = chunk[:good]
        done += good
        position += good + (good < length)
    return taken % bounds


@dataclass(frozen=True, slots=True)
class DataCommitment:
    """What a data set and its order of use were fixed to before training.

    Attributes:
        leaves: Record digests, 32 bytes each, one after the other; record id = index.
        order: Record ids in the order of use, or the seed that gives them, or what that seed follows from.
    """

    leaves: bytes
    order: tuple[int, ...] | OrderSeed | VerifiableOrder

    def __post_init__(self) -> None:
        if len(self.leaves) % DIGEST_SIZE or not self.leaves:
            raise UsageError("a data commitment needs whole 32-byte digests of at least one record")
        if isinstance(self.order, tuple):
            count = len(self)
            if not all(type(identity) is int and 0 <= identity < count for identity in self.order):
                raise UsageError(f"the order names a record other than 0 to {count - 1}; correct the order")

    @classmethod
    def over(cls, records: Iterable[Any], order: Sequence[int] | OrderSeed | VerifiableOrder) -> DataCommitment:
        """Commits to a data set.

        Args:
            records: Every record in order of its id, each a nest of tensors without a batch dimension, exactly the
                rows that will be stacked into batches (numbers as tensors, as a collate function makes them).
            order: Record ids in the order in which training will use them, over all epochs; or an `OrderSeed`, or a
                `VerifiableOrder`.

        Raises:
            UsageError: A record holds no tensor, or a number that is not one.
        """
        leaves = bytearray()
        for identity, record in enumerate(records):
            flat = flatten(record)
            for path, kind in flat.ignored.items():
                if kind in ("int", "float", "bool"):
                    raise UsageError(
                        f"record {identity} has a plain {kind} at {path!r}; give a tensor, as the batch will hold one"
                    )
            if not flat:
                raise UsageError(f"record {identity} holds no tensor; leave it out")
            leaves += record_digest("record/1", _describe(flat))
        if not isinstance(order, OrderSeed | VerifiableOrder):
            order = tuple(int(i) for i in order)
        return cls(bytes(leaves), order)

    def __len__(self) -> int:
        return len(self.leaves) // DIGEST_SIZE

    def leaf(self, identity: int) -> bytes:
        """Returns the 32-byte digest of a record."""
        if not 0 <= identity < len(self):
            raise UsageError(f"there is no record {identity}; ids go from 0 to {len(self) - 1}")
        return self.leaves[identity * DIGEST_SIZE : (identity + 1) * DIGEST_SIZE]

    def root(self) -> bytes:
        """Returns the RFC 6962 root over the record digests (32 bytes)."""
        return merkle.root([merkle.leaf_hash(self.leaf(identity)) for identity in range(len(self))])

    def ids(self) -> NDArray[np.int64]:
        """Returns record ids in the order of use over all epochs; a `DataLoader` takes them as its sampler."""
        seed = self.seed()
        if seed is None or isinstance(self.order, tuple):
            return np.array(self.order, dtype=np.int64)
        return np.concatenate([permutation(seed, epoch, len(self)) for epoch in range(self.order.epochs)])

    def seed(self) -> int | None:
        """Returns the seed that the order follows from; None if the order is a list.

        With a `VerifiableOrder`, pass it to `Recorder(seed=...)`: then W_0 follows from the data as well.
        """
        if isinstance(self.order, OrderSeed):
            return self.order.seed
        return self.order.seed(self.root(), len(self)) if isinstance(self.order, VerifiableOrder) else None

    def summary(self) -> dict[str, Any]:
        """Returns what a transcript's draft says of the commitment: number of records, root, order."""
        if isinstance(self.order, VerifiableOrder):
            order: dict[str, Any] = {"random": self.order.random, "epochs": self.order.epochs}
        elif isinstance(self.order, OrderSeed):
            order = {"seed": self.order.seed, "epochs": self.order.epochs}
        else:
            order = {"count": len(self.order), "blake3": bytes_digest(self.order_bytes())}
        return {"records": len(self), "root": self.root(), "order": order}

    def digest(self) -> bytes:
        """Returns the 32-byte digest of the commitment: its summary's."""
        return record_digest("data/1", self.summary())

    def order_bytes(self) -> bytes:
        """Returns record ids in the order of use as unsigned 64-bit little-endian integers."""
        return self.ids().astype("<u8").tobytes()

    def to_cbor(self) -> bytes:
        """Returns the whole commitment as deterministic CBOR.

        It is {"leaves": bytes, "order": order}, where order is the ids' bytes, [seed, epochs] or [random, epochs].
        """
        order: bytes | list[int | bytes]
        if isinstance(self.order, VerifiableOrder):
            order = [self.order.random, self.order.epochs]
        else:
            order = [self.order.seed, self.order.epochs] if isinstance(self.order, OrderSeed) else self.order_bytes()
        return cbor({"leaves": self.leaves, "order": order})

    @classmethod
    def from_cbor(cls, data: bytes) -> DataCommitment:
        """Reads what `to_cbor` wrote.

        Raises:
            FormatError: The bytes do not follow the format.
        """
        value = decode_cbor(data)
        if not isinstance(value, dict) or set(value) != {"leaves", "order"} or type(value["leaves"]) is not bytes:
            raise FormatError("not a data commitment: a map of leaves and order is needed")
        match value["order"]:
            case bytes(order):
                return cls.from_parts(value["leaves"], order)
            case [int(seed) | bytes(seed), int(epochs)]:
                return cls.from_parts(value["leaves"], (seed, epochs))
        raise FormatError("not a data commitment: the order is neither ids nor seed and epochs")

    @classmethod
    def from_parts(cls, leaves: bytes, order: bytes | tuple[int | bytes, int]) -> DataCommitment:
        """Puts a commitment together from stored parts.

        Args:
            leaves: Record digests, 32 bytes each.
            order: Record ids as unsigned 64-bit little-endian integers, or (seed, epochs), or (random bytes, epochs).

        Raises:
            FormatError: The parts do not fit each other.
        """
        if isinstance(order, bytes) and len(order) % 8:
            raise FormatError("the order of a data commitment is not a whole number of 64-bit ids; fetch it again")
        try:
            if isinstance(order, bytes):
                return cls(leaves, tuple(np.frombuffer(order, dtype="<u8").tolist()))
            seed, epochs = order
            return cls(leaves, VerifiableOrder(seed, epochs) if isinstance(seed, bytes) else OrderSeed(seed, epochs))
        except UsageError as error:
            raise FormatError(f"not a data commitment: {error.message}") from None
