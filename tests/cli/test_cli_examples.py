"""Every command's help ends with examples, and they parse."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from support.command_line import weighbridge
from typer.main import get_command

from firmware_sim import chip, fleet
from weighbridge.cli._examples import EXAMPLES
from weighbridge.cli.main import COMMANDS, application, run

ARGPARSE = {"chip boot": chip.parser, "chip fleet": fleet.parser}
"""Commands that hand their arguments on."""


def leaves(word: str = "") -> Iterator[tuple[str, Any]]:
    pending: list[tuple[str, Any]] = [("", get_command(application(word)))]
    while pending:
        path, command = pending.pop(0)
        inner = getattr(command, "commands", None)
        if inner is None:
            if not command.hidden:
                yield path.strip(), command
        else:
            pending += [(f"{path} {name}", each) for name, each in inner.items()]


LEAVES = dict(leaves())


def test_a_word_alone_puts_together_what_it_is_among_all() -> None:
    """A command line imports no other group than that of its first word; `--help` and unknown words import all."""
    for word in COMMANDS:
        alone = {path: [each.opts for each in command.params] for path, command in leaves(word)}
        among = {
            path: [each.opts for each in command.params] for path, command in LEAVES.items() if path.split()[0] == word
        }
        assert alone == among
    assert [path for path, _ in leaves("unknown")] == list(LEAVES)


def test_every_command_has_an_example_and_no_other_has() -> None:
    assert sorted(EXAMPLES) == sorted(LEAVES), "give each command an example in weighbridge/cli/_examples.py"


@pytest.mark.parametrize("path", sorted(LEAVES))
def test_examples_parse(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIGHBRIDGE_VERIFIER", "127.0.0.1:1")
    monkeypatch.setenv("WEIGHBRIDGE_CREDENTIALS", "credentials")
    for arguments in EXAMPLES[path]:
        words = shlex.split(arguments)
        LEAVES[path].make_context(path, list(words))
        if path in ARGPARSE:
            ARGPARSE[path]().parse_args(words)


@pytest.mark.parametrize("path", sorted(LEAVES))
def test_speeds_are_in_flop_a_second_and_their_options_say_flops(path: str) -> None:
    for each in LEAVES[path].params:
        words = getattr(each, "help", None) or ""
        assert not re.search(r"(?i)flops? (a|per|each) |flops? of a chip a|flop/day", words), each.opts
        if "FLOP/s" in words and each.param_type_name == "option":
            assert each.opts[0].endswith(("-flops", "--holding", "--stratum", "--vary", "--fleet")), each.opts


@pytest.mark.parametrize("path", sorted(LEAVES.keys() - ARGPARSE))
def test_help_shows_them(path: str) -> None:
    code, out, _ = weighbridge(*path.split(), "--help")
    assert code == 0
    for arguments in EXAMPLES[path]:
        assert f"weighbridge {path} {arguments}".rstrip() in [line.strip() for line in out.splitlines()]


@pytest.mark.parametrize("path", sorted(ARGPARSE))
def test_help_of_others_shows_them(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run([*path.split(), "--help"])
    said = capsys.readouterr().out
    assert all(f"weighbridge {path} {arguments}" in said for arguments in EXAMPLES[path])
