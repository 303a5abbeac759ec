"""Each reason for which a chip does not start, alone: `weighbridge chip boot` ends before it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support import exactly
from support.console import command, refused

from firmware_sim import ChipProcess, provision
from firmware_sim.boot import FLASH, SECRET, BootRom
from firmware_sim.device import builtin_image
from weighbridge.attest.firmware_image import FirmwareImage, FirmwareSigner
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import ChipError


@dataclass(frozen=True)
class Maker:
    """A manufacturer, its firmware, and credentials for chips."""

    path: Path
    authority: CertificateAuthority
    signer: FirmwareSigner
    image: FirmwareImage

    def chip(self, path: Path) -> Path:
        """Makes a chip with genuine firmware in a new directory."""
        provision(path, self.authority, image=self.signer.sign(self.image))
        return path


def boot(chip: Path, credentials: Path, socket: Path) -> list[str | Path]:
    """Returns the command that starts a chip."""
    return [
        *("chip", "boot", "--dir", chip, "--credentials", credentials, "--rate", "0"),
        *("--socket", socket, "--address-file", chip / "address"),
    ]


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    path = tmp_path_factory.mktemp("maker")
    authority = CertificateAuthority.create("Maker")
    authority.issue_role("chip", "chip").save(path)
    return Maker(path, authority, FirmwareSigner.issue(authority), builtin_image())


def no_image(maker: Maker, chip: Path) -> None:
    (chip / FLASH).unlink()


def no_such_form(maker: Maker, chip: Path) -> None:
    (chip / FLASH).write_bytes(maker.image.payload)


def of_another_maker(maker: Maker, chip: Path) -> None:
    other = FirmwareSigner.issue(CertificateAuthority.create("Maker"))
    (chip / FLASH).write_bytes(other.sign(maker.image))


def another_payload(maker: Maker, chip: Path) -> None:
    data = maker.signer.sign(maker.image)
    (chip / FLASH).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def for_another_model(maker: Maker, chip: Path) -> None:
    (chip / FLASH).write_bytes(maker.signer.sign(replace(maker.image, hwmodel="another")))


def older_than_before(maker: Maker, chip: Path) -> None:
    before = (chip / FLASH).read_bytes()
    BootRom(chip).start(maker.signer.sign(replace(maker.image, svn=maker.image.svn + 1)))
    (chip / FLASH).write_bytes(before)


IMAGES = [
    pytest.param(happens, identifier, marks=pytest.mark.finding(identifier), id=identifier)
    for happens, identifier in (
        (no_image, "chip.image.missing"),
        (no_such_form, "chip.image.malformed"),
        (of_another_maker, "chip.image.signature"),
        (another_payload, "chip.image.altered"),
        (for_another_model, "chip.image.model"),
        (older_than_before, "chip.image.rollback"),
    )
]


@pytest.mark.parametrize(("happens", "identifier"), IMAGES)
def test_an_image_is_not_started(
    maker: Maker, tmp_path: Path, happens: Callable[[Maker, Path], None], identifier: str
) -> None:
    chip = maker.chip(tmp_path / "chip")
    happens(maker, chip)
    # A chip that started would then miss its credentials.
    assert refused(*boot(chip, tmp_path, tmp_path / "shim")) == identifier


def test_a_genuine_image_is_started(maker: Maker, tmp_path: Path) -> None:
    chip = maker.chip(tmp_path / "chip")
    assert command("chip", "show", chip, "--json")[0] == 0
    assert refused(*boot(chip, tmp_path, tmp_path / "shim")) == "identity.chain"  # it has no credentials
    with ChipProcess(chip, maker.path) as process:
        assert process.address


@pytest.mark.finding("chip.device")
def test_a_chip_that_lost_its_secret(maker: Maker, tmp_path: Path) -> None:
    chip = maker.chip(tmp_path / "chip")
    (chip / SECRET).unlink()
    assert refused(*boot(chip, tmp_path, tmp_path / "shim")) == "chip.device"


@pytest.mark.finding("chip.socket")
def test_a_path_that_is_too_long_for_a_socket(maker: Maker, tmp_path: Path) -> None:
    chip = maker.chip(tmp_path / "chip")
    assert exactly.refused(*boot(chip, maker.path, tmp_path / ("long" * 30))) == "chip.socket"


@pytest.mark.finding("chip.start")
def test_a_chip_that_ends_before_it_serves(maker: Maker, tmp_path: Path) -> None:
    """What programs get that start chips from Python; the chip's own last words are in the message."""
    chip = maker.chip(tmp_path / "chip")
    (chip / SECRET).unlink()
    process = ChipProcess(chip, maker.path)
    with pytest.raises(ChipError, match=r"chip\.device") as caught, process:
        pass
    assert caught.value.reason == "chip.start"
