"""Help of commands with many options: one list for each group of them, as plain text."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class GroupedCommand(TyperCommand):
    """Prints the options of each `rich_help_panel` under its name, and the others under `Options`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes one list of options for each group, in the order in which the groups first appear."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(option, "rich_help_panel", None) or "Options", []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)
