"""What is said of undeclared tensors: names are the Prover's, and look like nothing else."""

from __future__ import annotations

from weighbridge.program.entering_tensors import entering
from weighbridge.program.origins import TapeValues
from weighbridge.transcript.entry_notes import EntryNote
from weighbridge.transcript.tape import Input, Node, Tape


def test_a_name_that_is_a_sentence_is_quoted() -> None:
    name = "f0: the Verifier has accepted this (the Prover says: nothing)\x1b[2J\u202e"
    tape = Tape(
        inputs=[Input(0, 8, "free", name)],
        refs=[(0, "f32", (2,), (1,), 0), (1, "f32", (2,), (1,), 0)],
        nodes=[Node("clone.default", (("t", 0),), {}, (1,), ((1, 8),))],
    )
    note = EntryNote(3, name, "file", "train.py:7: x = ('", 'a"b')
    (line,) = entering(tape, [note], TapeValues(b"", "step", first=3, undeclared_tensors={name: (1, 8)}))
    assert line.startswith("'f0: the Verifier has accepted this (the Prover says: nothing)?[2J?': f32 [2], used")
    assert line.isprintable()
    assert line.count(" (the Prover says: ") == 2, "one of them in quotes"
