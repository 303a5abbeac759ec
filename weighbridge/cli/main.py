"""The console script `weighbridge`: puts the command groups together and maps errors to exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from typing import Annotated

import typer
from typer.exceptions import TyperException

from weighbridge import __version__
from weighbridge.cli._completion import Install, Show
from weighbridge.cli._examples import attach
from weighbridge.cli._exits import Exit, crash, fail
from weighbridge.cli._packages import missing
from weighbridge.cli._progress import waiting
from weighbridge.core.errors import IdentityError, OwnCredentialsError, UsageError, WeighbridgeError

_INTERRUPTED = 130


def _version(wanted: bool) -> None:
    if wanted:
        print(f"weighbridge {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    install_completion: Install = None,
    show_completion: Show = None,
) -> None:
    """Exit codes: 0 nothing found, 1 findings, 2 bad usage or unreadable input, 3 internal fault."""


COMMANDS = {
    "record": "record:command",
    "doctor": "doctor:command",
    "replay": "replay:command",
    "regenerate": "regenerate:command",
    "compare": "compare:command",
    "show": "show:show",
    "ops": "ops:command",
    "demo": "demo.command:command",
    "up": "bench.commands:up",
    "down": "bench.commands:down",
    "status": "bench.commands:status",
    "example": "bench.example:example",
    "warm": "warm:command",
    "calibrate": "calibrate:command",
    "console": "console:command",
    "tape": "tape.commands:app",
    "transcript": "transcript.commands:app",
    "job": "job:app",
    "chip": "chip.commands:app",
    "identity": "identity:app",
    "serve": "serve:app",
    "inspect": "inspect.commands:app",
    "registry": "registry.commands:app",
    "report": "report:app",
    "outcome": "outcome:app",
    "evidence": "evidence:app",
    "gpu-evidence": "gpu_evidence.commands:app",
    "audit": "audit:app",
    "dispute": "dispute:app",
    "referee": "referee:app",
    "rules": "rules:app",
    "site": "site:app",
    "analysis": "analysis.commands:app",
}
"""Where each command or group of commands is, in the order of the help."""


@cache
def application(word: str = "") -> typer.Typer:
    """Returns the command line as a Typer application.

    Args:
        word: A command line's first word. If it names a command or a group, only that one is imported and put together,
            which takes a quarter of the time that all of them take.
    """
    app = typer.Typer(
        name="weighbridge",
        help="Check, with a stated probability of catching a violation, that AI training runs followed agreed rules.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_root)
    for name in [word] if word in COMMANDS else COMMANDS:
        where, _, attribute = COMMANDS[name].partition(":")
        module = import_module(f"weighbridge.cli.{where}")
        found = getattr(module, attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name, context_settings=getattr(module, "SETTINGS", None))(found)
    attach(app)
    return app


@cache
def _command(word: str) -> Callable[..., object]:
    """The application as one command; made once, as it takes longer than most commands."""
    return typer.main.get_command(application(word))


def run(arguments: Sequence[str]) -> int:
    """Runs one command line without the program's name and returns its exit code (see `_exits`)."""
    as_json = "--json" in arguments
    try:
        with _patience(arguments):
            word = next((word for word in arguments[:1] if word in COMMANDS), "")
            result = _command(word)(args=list(arguments), prog_name="weighbridge", standalone_mode=False)
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except TyperException as error:
        message = error.format_message()
        if "\n" in message:  # a group without a command: the message is its help
            print(message, file=sys.stderr)
            return Exit.UNREADABLE
        context = getattr(error, "ctx", None)
        asked = "weighbridge" if context is None else context.command_path
        return fail(UsageError(f"{message.rstrip('.')}; see `{asked} --help`"), as_json=as_json)
    except WeighbridgeError as error:
        return fail(error, as_json=as_json)
    except OwnCredentialsError as error:
        return fail(IdentityError(str(error)), as_json=as_json)
    except BrokenPipeError:
        return Exit.NOTHING_FOUND
    except ModuleNotFoundError as error:
        lacking = missing(error)
        return crash(error, as_json=as_json) if lacking is None else fail(lacking, as_json=as_json)
    except Exception as error:
        return crash(error, as_json=as_json)
    return int(result) if isinstance(result, int) else Exit.NOTHING_FOUND


def _patience(arguments: Sequence[str]) -> AbstractContextManager[None]:
    """Returns what shows that a command is at work; nothing for a script of the user's, whose terminal is its own."""
    words = [word for word in arguments[:3] if word.isidentifier()]
    if words[:1] == ["record"]:
        return nullcontext()
    return waiting(f"weighbridge {' '.join(words[:2])}")


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))
