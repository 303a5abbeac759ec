"""`weighbridge dispute memory` over the evidence of a real inspection: of a true claim and of false ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import answer, fails, weighbridge
from support.inspected_station import Inspected, inspected
from support.train_job import SNAPSHOT_IN, batch_of

from weighbridge.transcript.reader import Transcript


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Inspected:
    return inspected(tmp_path_factory.mktemp("inspected"))


@pytest.fixture(scope="module")
def bundle(source: Inspected, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evidence") / "snapshot.zip"
    index = source.chip("honest")["snapshots"][0]["index"]
    place = f"{source.ueids['honest']}:{index}"
    answer(
        "evidence", "export", source.inspections[0], "--out", out, "--snapshot", place, "--db", source.db,
        "--cache", source.cache, "--manufacturer", source.manufacturer,
    )  # fmt: skip
    return out


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path, Path]:
    made = tuple(tmp_path / name for name in ("mine", "theirs", "referee"))
    assert all(weighbridge("rules", "key", path)[0] == 0 for path in made)
    return made[0], made[1], made[2]


def batch(path: Path, *, changed: bool = False) -> Path:
    """Writes what the model was given in the step of the snapshot, which the chip had in memory."""
    data = bytearray(batch_of(SNAPSHOT_IN)["x"].numpy().tobytes())
    data[1500] ^= changed
    path.write_bytes(data)
    return path


def test_a_false_claim_is_refuted_and_a_true_one_is_not(
    source: Inspected, bundle: Path, keys: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    mine, theirs, referee = keys
    held, altered = batch(tmp_path / "batch"), batch(tmp_path / "altered", changed=True)
    about = ("--evidence", bundle, "--manufacturer", source.manufacturer, "--key", mine)
    assert fails("dispute", "memory", altered, *about, "--out", tmp_path / "none") == "usage"
    true, false = tmp_path / "true", tmp_path / "false"
    place = answer("dispute", "memory", held, *about, "--out", true)["storage"]
    answer("dispute", "memory", altered, *about, "--storage", place, "--out", false)
    for file, shown in ((true, held), (false, held), (tmp_path / "again", altered)):
        if not file.exists():
            answer("dispute", "memory", altered, *about, "--storage", place, "--out", file)
        assert answer("dispute", "answer", file, shown, "--key", theirs)["sent"] == "doubt"
        said = answer("dispute", "judge", file, "--key", referee, code=int(file != true))
        expected = [("challenger", "undecided", "dispute.memory.granted")]
        if file != true:
            expected = [("challenger", "false", "dispute.memory.differs")]
        assert [(each["party"], each["verdict"], each["code"]) for each in said["claims"]] == expected
        checked = answer("dispute", "verify", file, "--root", source.manufacturer, code=int(file != true))
        assert checked["agrees"]
        assert source.ueids["honest"] in checked["snapshot"]
        assert "not checked" not in checked["snapshot"]
    assert fails("dispute", "verify", true, "--root", source.root / "station" / "ca" / "authority.pem") != ""


def test_a_state_is_claimed_out_of_a_checkpoint(
    source: Inspected, bundle: Path, keys: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """The weights of a step before are not those that the chip had, and who has the run shows it."""
    mine, theirs, referee = keys
    run = source.root / "honest"
    transcript = Transcript.open(run)
    step = transcript.checkpoint_steps[1]
    region = max(
        transcript.checkpoint(step).storages, key=lambda name: transcript.checkpoint(step).storages[name].numel()
    )
    about = ("--evidence", bundle, "--manufacturer", source.manufacturer, "--key", mine)
    state = ("--step", step, "--region", region)
    file = tmp_path / "dispute"
    assert fails("dispute", "memory", run, *about, "--out", file) == "usage"
    assert fails("dispute", "memory", run, *about, "--step", step, "--region", "none", "--out", file) == "usage"
    found = None
    for place in range(200):
        code, _, _ = weighbridge("dispute", "memory", run, *about, *state, "--storage", place, "--out", file)
        if code == 0:
            found = place
            break
    assert found is not None, "a storage of the snapshot has the size of the weights"
    other = source.root / "altered"
    assert fails("dispute", "answer", file, other, "--key", theirs) in {"usage", "transcript"}
    answer("dispute", "answer", file, run, "--key", theirs)
    said = answer("dispute", "judge", file, "--key", referee, code=1)
    assert [(each["party"], each["verdict"]) for each in said["claims"]] == [("challenger", "false")]
    declined = tmp_path / "declined"
    answer("dispute", "memory", run, *about, *state, "--storage", found, "--out", declined)
    answer("dispute", "answer", declined, run, "--key", theirs, "--decline")
    said = answer("dispute", "judge", declined, "--key", referee)
    assert [each["verdict"] for each in said["claims"]] == ["undecided"]
