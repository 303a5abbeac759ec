"""One console for all tests of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="install the extra [console]")

from support.console_station import ConsoleStation, console_station


@pytest.fixture(scope="package")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleStation]:
    with console_station(tmp_path_factory.mktemp("console")) as running:
        yield running
