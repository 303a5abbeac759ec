"""Checkpoints, cosignatures and proof files: published vectors, round trips, and everything that must be refused."""

import base64
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.attest import tlog
from weighbridge.attest.tlog import LOG, WITNESS, Checkpoint, Note, NoteError, NoteSigner, Proof, Signature
from weighbridge.core import merkle
from weighbridge.core.errors import ProofError, UsageError, WeighbridgeError

# The key and note in the documentation of golang.org/x/mod/sumdb/note, which the format comes from.
GO_SECRET = "AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
GO_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_NOTE = """If you think cryptography is the answer to your problem,
then you don't know what your problem is.

— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=
"""
# The checkpoint with a cosignature that c2sp.org/tlog-cosignature shows; its keys are not published.
C2SP_NOTE = """example.com/behind-the-sofa
20852163
CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=
— witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==
"""  # noqa: E501

LOG_SIGNER = NoteSigner("weighbridge/chip/01aa", LOG, b"l" * 32)
WITNESS_SIGNER = NoteSigner("verifier.example/w1", WITNESS, b"w" * 32)

name = st.text(st.characters(min_codepoint=33, exclude_characters="+", categories=("L", "N", "P")), min_size=1)
line = st.text(st.characters(min_codepoint=32, codec="utf-8"), max_size=30)
digest = st.binary(min_size=32, max_size=32)
signature = st.builds(Signature, name, st.binary(min_size=4, max_size=4), st.binary(min_size=1, max_size=80))


@st.composite
def notes(draw: st.DrawFn) -> Note:
    text = "\n".join(draw(st.lists(line, min_size=1, max_size=5))) + "\n"
    return Note(text, tuple(draw(st.lists(signature, min_size=1, max_size=4))))


def signed(size: int = 5, root: bytes = b"r" * 32) -> Note:
    text = Checkpoint(LOG_SIGNER.key.name, size, root).text
    return Note(text, (LOG_SIGNER.sign(text), WITNESS_SIGNER.sign(text, 1_700_000_000)))


def test_the_note_of_the_reference_implementation() -> None:
    """Read, verified, and recomputed bit for bit from the private key."""
    key = tlog.parse_key(GO_KEY)
    assert (key.name, key.type, key.id.hex()) == ("PeterNeumann", LOG, "c74f20a3")
    assert str(key) == GO_KEY
    note = tlog.parse_note(GO_NOTE.encode())
    assert note.verify(key) == [0]
    signer = NoteSigner("PeterNeumann", LOG, base64.b64decode(GO_SECRET)[1:])
    assert Note(note.text, (signer.sign(note.text),)).encode() == GO_NOTE.encode()


def test_the_checkpoint_of_the_specification() -> None:
    note = tlog.parse_note(C2SP_NOTE.encode())
    assert note.encode() == C2SP_NOTE.encode()
    checkpoint = tlog.parse_checkpoint(note.text)
    assert (checkpoint.origin, checkpoint.size) == ("example.com/behind-the-sofa", 20852163)
    assert checkpoint.text == note.text
    log, witness = note.signatures
    assert (log.id.hex(), len(log.data)) == ("033de0ae", 64)
    assert int.from_bytes(witness.data[:8]) == 1679315147  # the time in the specification's example of a message


def test_what_a_witness_signs() -> None:
    """The message is the header, the time and the text, word for word."""
    text = Checkpoint("example.com/log", 3, bytes(32)).text
    message = f"cosignature/v1\ntime 1679315147\n{text}"
    cosignature = WITNESS_SIGNER.sign(text, 1679315147)
    plain = NoteSigner("x", LOG, b"w" * 32).sign(message)
    assert cosignature.data == (1679315147).to_bytes(8) + plain.data


@given(notes())
def test_notes_round_trip(note: Note) -> None:
    """parse_note(n.encode()) == n, unless the text ends in a way that reads as another text."""
    data = note.encode()
    assert tlog.parse_note(data).encode() == data
    assert tlog.parse_note(data) == note


@given(st.integers(0, (1 << 63) - 1), digest, st.binary(min_size=17, max_size=33))
def test_checkpoints_round_trip(size: int, root: bytes, ueid: bytes) -> None:
    """parse_checkpoint(c.text) == c."""
    checkpoint = Checkpoint(tlog.origin(ueid), size, root)
    assert tlog.parse_checkpoint(checkpoint.text) == checkpoint


@given(name, st.sampled_from([LOG, WITNESS]), digest)
def test_keys_round_trip(name: str, type: tlog.KeyType, public: bytes) -> None:
    """parse_key(str(k)) == k."""
    key = tlog.NoteKey(name, type, public)
    assert tlog.parse_key(str(key)) == key


@given(st.integers(0, 1 << 40), st.lists(digest, max_size=10), st.none() | st.binary(max_size=100))
def test_proofs_round_trip(index: int, hashes: list[bytes], extra: bytes | None) -> None:
    """parse_proof(p.encode()) == p."""
    proof = Proof(index, tuple(hashes), signed(), extra)
    assert tlog.parse_proof(proof.encode()) == proof


@given(st.binary(max_size=300) | notes().map(Note.encode) | st.text(max_size=200).map(str.encode))
def test_hostile_bytes_raise_only_our_errors(data: bytes) -> None:
    for parse in (tlog.parse_note, tlog.parse_proof):
        for each in (data, b"c2sp.org/tlog-proof@v1\nindex 0\n" + data, b"c2sp.org/tlog-proof@v1\nindex 0\n\n" + data):
            with suppress(WeighbridgeError):
                assert parse(each).encode() == each
    text = data.decode(errors="replace")
    with suppress(WeighbridgeError):
        assert tlog.parse_checkpoint(text).text == text
    with suppress(WeighbridgeError):
        assert str(tlog.parse_key(text)) == text


@given(st.data())
def test_a_flipped_bit_is_never_accepted(data: st.DataObject) -> None:
    """Whatever is altered in a checkpoint, log and witness no longer vouch for another text."""
    good = signed()
    altered = bytearray(good.encode())
    place = data.draw(st.integers(0, len(altered) * 8 - 1))
    altered[place // 8] ^= 1 << place % 8
    try:
        _, note = tlog.open_checkpoint(bytes(altered), LOG_SIGNER.key)
        note.verify(WITNESS_SIGNER.key)
    except NoteError:
        return
    assert (note.text, set(note.signatures)) >= (good.text, set(good.signatures))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "origin\n1\n",
        "\n1\n" + base64.b64encode(bytes(32)).decode() + "\n",
        "origin\n01\n" + base64.b64encode(bytes(32)).decode() + "\n",
        "origin\n-1\n" + base64.b64encode(bytes(32)).decode() + "\n",
        "origin\n9223372036854775808\n" + base64.b64encode(bytes(32)).decode() + "\n",
        "origin\n1\n" + base64.b64encode(bytes(31)).decode() + "\n",
        "origin\n1\n" + base64.b64encode(bytes(32)).decode().rstrip("=") + "\n",
        "origin\n1\n" + "A" * 42 + "B=\n",  # base64 with bits that stand for nothing
        "origin\n1\n" + base64.b64encode(bytes(32)).decode(),
        "origin\n1\n" + base64.b64encode(bytes(32)).decode() + "\nextension\n",
    ],
)
def test_malformed_checkpoints(text: str) -> None:
    with pytest.raises(NoteError):
        tlog.parse_checkpoint(text)


@pytest.mark.parametrize(
    "data",
    [
        b"text\n",
        b"text\n\n",
        b"text\n\n\xe2\x80\x94 name AAAAAAA=",
        b"text\n\n- name AAAAAAA=\n",
        b"text\n\n\xe2\x80\x94 na+me AAAAAAA=\n",
        b"text\n\n\xe2\x80\x94 name AAAAAA==\n",  # an identifier and no signature
        b"text\n\n\xe2\x80\x94 name\n",
        b"te\txt\n\n\xe2\x80\x94 name AAAAAAA=\n",
        b"te\xffxt\n\n\xe2\x80\x94 name AAAAAAA=\n",
        b"text\r\n\n\xe2\x80\x94 name AAAAAAA=\n",
        b"text\n\n" + b"\xe2\x80\x94 name AAAAAAA=\n" * 65,
        b"x" * (1 << 16) + b"\n\n\xe2\x80\x94 name AAAAAAA=\n",
    ],
)
def test_malformed_notes(data: bytes) -> None:
    with pytest.raises(NoteError):
        tlog.parse_note(data)


def test_only_the_right_key_verifies() -> None:
    note = signed()
    assert note.verify(WITNESS_SIGNER.key) == [1_700_000_000]
    other_key = NoteSigner(LOG_SIGNER.key.name, LOG, b"x" * 32).key
    other_type = tlog.NoteKey(WITNESS_SIGNER.key.name, LOG, WITNESS_SIGNER.key.public)
    for key in (other_key, other_type):
        with pytest.raises(NoteError) as caught:
            note.verify(key)
        assert caught.value.reason == "chip.note.signature"


def test_one_false_signature_of_a_known_key_spoils_the_note() -> None:
    note = signed()
    false = Signature(LOG_SIGNER.key.name, LOG_SIGNER.key.id, bytes(64))
    with pytest.raises(NoteError):
        Note(note.text, (*note.signatures, false)).verify(LOG_SIGNER.key)
    assert note.with_signature(false).signatures[-1] == false  # it replaces the key's former one
    assert len(note.with_signature(false).signatures) == 2


def test_signatures_of_unknown_keys_are_ignored() -> None:
    note = signed().with_signature(Signature("somebody", b"1234", b"anything"))
    tlog.open_checkpoint(note.encode(), LOG_SIGNER.key)


def test_a_log_signature_is_no_cosignature() -> None:
    """The same private key in both roles: neither signature passes as the other."""
    text = Checkpoint("o", 1, bytes(32)).text
    log, witness = NoteSigner("n", LOG, b"k" * 32), NoteSigner("n", WITNESS, b"k" * 32)
    as_witness = Signature("n", witness.key.id, (0).to_bytes(8) + log.sign(text).data)
    with pytest.raises(NoteError):
        Note(text, (as_witness,)).verify(witness.key)


def test_impossible_names_are_usage_errors() -> None:
    for bad in ("", "a b", "a+b", "a\nb", "a\u00a0b"):
        with pytest.raises(UsageError):
            NoteSigner(bad, LOG, bytes(32))


def test_malformed_keys() -> None:
    for bad in ("", "a+b", GO_KEY[:-1], GO_KEY.replace("c74f20a3", "c74f20a4"), GO_KEY.replace("Peter", "Pe ter")):
        with pytest.raises(NoteError):
            tlog.parse_key(bad)


def test_a_proof_holds_offline_and_for_its_entry_only() -> None:
    entries = [f"entry {number}".encode() for number in range(11)]
    tree = merkle.Tree(map(merkle.leaf_hash, entries))
    note = signed(11, tree.root())
    for index, entry in enumerate(entries):
        proof = tlog.parse_proof(Proof(index, tuple(tree.inclusion_proof(index)), note).encode())
        found = tlog.verify_proof(proof, entry, LOG_SIGNER.key, [WITNESS_SIGNER.key])
        assert (found.size, found.root) == (11, tree.root())
        with pytest.raises(ProofError):
            tlog.verify_proof(proof, entries[index - 1], LOG_SIGNER.key)
        with pytest.raises(NoteError):
            tlog.verify_proof(proof, entry, LOG_SIGNER.key, [NoteSigner("other", WITNESS, b"o" * 32).key])


def test_malformed_proofs() -> None:
    note = signed().encode()
    for bad in (
        b"",
        b"c2sp.org/tlog-proof@v2\nindex 0\n\n" + note,
        b"c2sp.org/tlog-proof@v1\n\n" + note,
        b"c2sp.org/tlog-proof@v1\nindex 00\n\n" + note,
        b"c2sp.org/tlog-proof@v1\nindex 0\nAAAA\n\n" + note,
        b"c2sp.org/tlog-proof@v1\nindex 0\nextra AAAA\n\n" + note,
        b"c2sp.org/tlog-proof@v1\nindex 0\n",
        b"c2sp.org/tlog-proof@v1\nindex 0\n\nno note\n\n" + note.partition(b"\n\n")[2],
        b"c2sp.org/tlog-proof@v1\nindex 0\n" + (base64.b64encode(bytes(32)) + b"\n") * 65 + b"\n" + note,
    ):
        with pytest.raises(NoteError):
            tlog.parse_proof(bad)
