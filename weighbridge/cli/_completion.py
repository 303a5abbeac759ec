"""Completion in shells: `weighbridge --install-completion bash`.

Typer's own option takes no name of a shell and asks the running processes instead, which fails in containers and over
ssh. Here the shell is named.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.completion import completion_init, get_completion_script, install  # type: ignore[attr-defined]

PROGRAM, VARIABLE = "weighbridge", "_WEIGHBRIDGE_COMPLETE"

_AT_ONCE = f'[[ "$funcstack[1]" == _{PROGRAM} ]] && _{PROGRAM}_completion\n'
"""zsh loads the script at the first key press; without this line, that one completes nothing."""

completion_init()  # without it Typer knows no shell when one asks for completions


class Shell(StrEnum):
    """Shells that completion works in."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def _install(context: typer.Context, shell: Any) -> None:
    if shell is None or context.resilient_parsing:
        return
    name, path = install(shell=str(shell), prog_name=PROGRAM, complete_var=VARIABLE)
    if shell == Shell.ZSH:
        path.write_text(f"{path.read_text().rstrip()}\n{_AT_ONCE}", encoding="utf-8")
    print(f"{name} completes weighbridge from its next start on; the script is {path}")
    raise typer.Exit


def _show(context: typer.Context, shell: Any) -> None:
    if shell is None or context.resilient_parsing:
        return
    print(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=str(shell)))
    if shell == Shell.ZSH:
        print(_AT_ONCE, end="")
    raise typer.Exit


Install = Annotated[
    Shell | None,
    typer.Option("--install-completion", callback=_install, is_eager=True, help="Complete commands in this shell."),
]
Show = Annotated[
    Shell | None,
    typer.Option("--show-completion", callback=_show, is_eager=True, help="Print what --install-completion installs."),
]
