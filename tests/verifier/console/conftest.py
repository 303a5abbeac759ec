"""One console for all tests of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.console_station import ConsoleStation


@pytest.fixture(scope="package")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleStation]:
    from support.console_station import console_station

    with console_station(tmp_path_factory.mktemp("console")) as running:
        yield running
