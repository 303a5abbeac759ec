"""The console script `weighbridge`: puts the command groups together and maps errors to exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from weighbridge import __version__
from weighbridge.cli import (
    analysis,
    chip,
    compare,
    demo,
    identity,
    inspect,
    job,
    ops,
    registry,
    replay,
    report,
    rules,
    show,
    tape,
    transcript,
)
from weighbridge.cli._exits import Exit, crash, fail
from weighbridge.errors import UsageError, WeighbridgeError

_INTERRUPTED = 130

app = typer.Typer(
    name="weighbridge",
    help="Check, with a stated probability of catching a violation, that AI training runs followed agreed rules.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command("replay")(replay.command)
app.command("compare")(compare.command)
app.command("show")(show.show)
app.command("ops")(ops.command)
app.command("demo")(demo.command)
app.add_typer(tape.app, name="tape")
app.add_typer(transcript.app, name="transcript")
app.add_typer(job.app, name="job")
app.add_typer(chip.app, name="chip")
app.add_typer(identity.app, name="identity")
app.add_typer(inspect.app, name="inspect")
app.add_typer(registry.app, name="registry")
app.add_typer(report.app, name="report")
app.add_typer(rules.app, name="rules")
app.add_typer(analysis.app, name="analysis")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"weighbridge {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Exit codes: 0 nothing found, 1 findings, 2 bad usage or unreadable input, 3 internal fault."""


def run(arguments: Sequence[str]) -> int:
    """Runs one command line without the program's name and returns its exit code (see `_exits`)."""
    as_json = "--json" in arguments
    try:
        result = app(args=list(arguments), prog_name="weighbridge", standalone_mode=False)
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except TyperException as error:
        message = error.format_message()
        if "\n" in message:  # a group without a command: the message is its help
            print(message, file=sys.stderr)
            return Exit.UNREADABLE
        return fail(UsageError(f"{message.rstrip('.')}; see `weighbridge --help`"), as_json=as_json)
    except WeighbridgeError as error:
        return fail(error, as_json=as_json)
    except BrokenPipeError:
        return Exit.NOTHING_FOUND
    except Exception as error:
        return crash(error, as_json=as_json)
    return int(result) if isinstance(result, int) else Exit.NOTHING_FOUND


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))
