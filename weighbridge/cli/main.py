"""The console script `weighbridge`: puts the command groups together and maps errors to exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Annotated

import typer
from typer.exceptions import TyperException

from weighbridge import __version__
from weighbridge.cli import (
    audit,
    calibrate,
    compare,
    console,
    dispute,
    doctor,
    evidence,
    identity,
    job,
    ops,
    outcome,
    record,
    referee,
    regenerate,
    replay,
    report,
    rules,
    serve,
    show,
    site,
    warm,
)
from weighbridge.cli._completion import Install, Show
from weighbridge.cli._examples import attach
from weighbridge.cli._exits import Exit, crash, fail
from weighbridge.cli._packages import missing
from weighbridge.cli._progress import waiting
from weighbridge.cli.analysis.commands import app as analysis
from weighbridge.cli.bench import commands as bench
from weighbridge.cli.bench.example import example
from weighbridge.cli.chip.commands import app as chip
from weighbridge.cli.demo.command import command as demo
from weighbridge.cli.gpu_evidence.commands import app as gpu_evidence
from weighbridge.cli.inspect.commands import app as inspect
from weighbridge.cli.registry.commands import app as registry
from weighbridge.cli.tape.commands import app as tape
from weighbridge.cli.transcript.commands import app as transcript
from weighbridge.core.errors import IdentityError, OwnCredentialsError, UsageError, WeighbridgeError

_INTERRUPTED = 130

app = typer.Typer(
    name="weighbridge",
    help="Check, with a stated probability of catching a violation, that AI training runs followed agreed rules.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command("record", context_settings=record.SETTINGS)(record.command)
app.command("doctor", context_settings=doctor.SETTINGS)(doctor.command)
app.command("replay")(replay.command)
app.command("regenerate")(regenerate.command)
app.command("compare")(compare.command)
app.command("show")(show.show)
app.command("ops")(ops.command)
app.command("demo")(demo)
app.command("up")(bench.up)
app.command("down")(bench.down)
app.command("status")(bench.status)
app.command("example")(example)
app.command("warm")(warm.command)
app.command("calibrate")(calibrate.command)
app.add_typer(tape, name="tape")
app.add_typer(transcript, name="transcript")
app.add_typer(job.app, name="job")
app.add_typer(chip, name="chip")
app.add_typer(identity.app, name="identity")
app.add_typer(serve.app, name="serve")
app.add_typer(inspect, name="inspect")
app.add_typer(registry, name="registry")
app.add_typer(report.app, name="report")
app.add_typer(outcome.app, name="outcome")
app.add_typer(evidence.app, name="evidence")
app.add_typer(gpu_evidence, name="gpu-evidence")
app.add_typer(audit.app, name="audit")
app.add_typer(dispute.app, name="dispute")
app.add_typer(referee.app, name="referee")
app.add_typer(rules.app, name="rules")
app.command("console")(console.command)
app.add_typer(site.app, name="site")
app.add_typer(analysis, name="analysis")
attach(app)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"weighbridge {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    install_completion: Install = None,
    show_completion: Show = None,
) -> None:
    """Exit codes: 0 nothing found, 1 findings, 2 bad usage or unreadable input, 3 internal fault."""


@cache
def _command() -> Callable[..., object]:
    """All groups as one command; made once, as it takes longer than most commands."""
    return typer.main.get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Runs one command line without the program's name and returns its exit code (see `_exits`)."""
    as_json = "--json" in arguments
    try:
        with _patience(arguments):
            result = _command()(args=list(arguments), prog_name="weighbridge", standalone_mode=False)
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
