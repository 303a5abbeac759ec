"""RFC 6962 trees against published vectors, against each other, and against forged proofs."""

import hashlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.core import merkle
from weighbridge.core.errors import ProofError, UsageError

# The eight leaves and the roots of their prefixes that the Certificate Transparency implementations test against.
CT_LEAVES = [
    bytes.fromhex(text)
    for text in ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
]
CT_ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def leaves(count: int) -> list[bytes]:
    return [merkle.leaf_hash(str(i).encode()) for i in range(count)]


def reference_root(hashes: list[bytes]) -> bytes:
    """The recursive definition of RFC 6962, section 2.1, word for word."""
    if not hashes:
        return hashlib.sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    k = 1
    while k * 2 < len(hashes):
        k *= 2
    return hashlib.sha256(b"\x01" + reference_root(hashes[:k]) + reference_root(hashes[k:])).digest()


def test_empty_tree_is_the_hash_of_nothing() -> None:
    assert merkle.root([]).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize("size", range(1, 9))
def test_certificate_transparency_roots(size: int) -> None:
    assert merkle.root([merkle.leaf_hash(data) for data in CT_LEAVES[:size]]).hex() == CT_ROOTS[size - 1]


def test_certificate_transparency_inclusion_path() -> None:
    """The path of leaf 0 in the tree of 8, as published with the vectors."""
    hashes = [merkle.leaf_hash(data) for data in CT_LEAVES]
    assert [value.hex() for value in merkle.inclusion_proof(hashes, 0)] == [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ]


@given(st.integers(0, 70))
def test_root_follows_the_recursive_definition(size: int) -> None:
    assert merkle.root(leaves(size)) == reference_root(leaves(size))


@given(st.data())
def test_inclusion_round_trip(data: st.DataObject) -> None:
    """verify_inclusion(leaf, i, n, inclusion_proof(leaves, i), root(leaves)) never raises."""
    size = data.draw(st.integers(1, 70))
    index = data.draw(st.integers(0, size - 1))
    hashes = leaves(size)
    merkle.verify_inclusion(hashes[index], index, size, merkle.inclusion_proof(hashes, index), merkle.root(hashes))


def test_consistency_round_trip() -> None:
    """verify_consistency(m, n, consistency_proof(leaves, m), ...) never raises, for every m <= n."""
    hashes = leaves(33)
    roots = [merkle.root(hashes[:size]) for size in range(34)]
    for new in range(34):
        for old in range(new + 1):
            merkle.verify_consistency(old, new, merkle.consistency_proof(hashes[:new], old), roots[old], roots[new])


@given(st.data())
def test_forged_inclusion_is_refused(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40))
    index = data.draw(st.integers(0, size - 1))
    hashes = leaves(size)
    proof, root = merkle.inclusion_proof(hashes, index), merkle.root(hashes)
    forgeries: list[tuple[bytes, int, int, list[bytes], bytes]] = [
        (merkle.leaf_hash(b"other"), index, size, proof, root),
        (hashes[index], index, size, [*proof, root], root),
        (hashes[index], index, size, proof, bytes(32)),
        (hashes[index], size, size, proof, root),
        (hashes[index], -1, size, proof, root),
        (hashes[index], index, size, proof, root[:31]),
    ]
    if proof:
        position = data.draw(st.integers(0, len(proof) - 1))
        changed = list(proof)
        changed[position] = bytes(value ^ 1 for value in changed[position])
        forgeries += [(hashes[index], index, size, changed, root), (hashes[index], index, size, proof[:-1], root)]
        forgeries.append((hashes[index], (index + 1) % size, size, proof, root))
    for forgery in forgeries:
        with pytest.raises(ProofError):
            merkle.verify_inclusion(*forgery)


@given(st.data())
def test_forged_consistency_is_refused(data: st.DataObject) -> None:
    new = data.draw(st.integers(1, 40))
    old = data.draw(st.integers(1, new))
    hashes = leaves(new)
    proof = merkle.consistency_proof(hashes, old)
    old_root, new_root = merkle.root(hashes[:old]), merkle.root(hashes)
    rewritten = merkle.root([merkle.leaf_hash(b"rewritten"), *hashes[1:old]])
    forgeries: list[tuple[int, int, list[bytes], bytes, bytes]] = [
        (old, new, proof, rewritten, new_root),
        (old, new, proof, old_root, bytes(32)),
        (old, new, [*proof, old_root], old_root, new_root),
        (new + 1, new, proof, old_root, new_root),
        (0, new, proof, old_root, new_root),
    ]
    if proof:
        position = data.draw(st.integers(0, len(proof) - 1))
        changed = list(proof)
        changed[position] = bytes(value ^ 1 for value in changed[position])
        forgeries += [(old, new, changed, old_root, new_root), (old, new, proof[1:], old_root, new_root)]
    for forgery in forgeries:
        with pytest.raises(ProofError):
            merkle.verify_consistency(*forgery)


@given(
    st.integers(-3, 1 << 70),
    st.integers(-3, 1 << 70),
    st.lists(st.binary(min_size=0, max_size=40), max_size=8),
    st.binary(max_size=40),
    st.binary(max_size=40),
)
def test_hostile_proofs_raise_only_our_errors(
    first: int, second: int, proof: list[bytes], one: bytes, other: bytes
) -> None:
    for verify in (
        lambda: merkle.verify_inclusion(one, first, second, proof, other),
        lambda: merkle.verify_consistency(first, second, proof, one, other),
    ):
        with suppress(ProofError):
            verify()


def test_impossible_questions_are_usage_errors() -> None:
    with pytest.raises(UsageError):
        merkle.inclusion_proof(leaves(3), 3)
    with pytest.raises(UsageError):
        merkle.consistency_proof(leaves(3), 4)


def test_a_growing_tree_is_the_tree_over_its_leaves() -> None:
    """Tree(leaves).f(..., size) == f(leaves[:size], ...) for root and both proofs, for every size and argument."""
    hashes = leaves(37)
    tree = merkle.Tree(hashes[:5])
    for each in hashes[5:]:
        tree.append(each)
    assert len(tree) == 37
    assert tree.root() == merkle.root(hashes)
    for size in range(38):
        assert tree.root(size) == reference_root(hashes[:size])
        for index in range(size):
            assert tree.inclusion_proof(index, size) == merkle.inclusion_proof(hashes[:size], index)
        for old in range(size + 1):
            assert tree.consistency_proof(old, size) == merkle.consistency_proof(hashes[:size], old)


def test_impossible_sizes_of_a_growing_tree_are_usage_errors() -> None:
    tree = merkle.Tree(leaves(3))
    for ask in (
        lambda: tree.root(4),
        lambda: tree.root(-1),
        lambda: tree.inclusion_proof(2, 2),
        lambda: tree.inclusion_proof(0, 4),
        lambda: tree.consistency_proof(3, 2),
    ):
        with pytest.raises(UsageError):
            ask()
