"""Recordings that are killed and started again: nothing is lost, and the transcript is that of a run left alone."""

from __future__ import annotations

import copy
import math
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.recordings import verdict
from support.station import Station, ids
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from benchmarks import soak_resume
from benchmarks.resume_job import train
from firmware_sim.shim import Shim
from prover import Recorder
from verifier.contact.clients import ChipClient
from weighbridge.attest import tokens
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import cbor
from weighbridge.core.errors import StateChangedError, UsageError
from weighbridge.transcript.reader import Transcript, recover


class CrashError(Exception):
    """What ends a training here; with `resume=True` the directory is left as a kill leaves it."""


def crash(path: Path, stop: int, **options: object) -> None:
    """Trains up to the `stop`-th place at which the program may be stopped, and stops it there."""
    running = train(path, **options)  # type: ignore[arg-type]
    for _ in range(stop):
        next(running)
    with pytest.raises(CrashError):
        running.throw(CrashError)


def finish(path: Path, **options: object) -> Transcript:
    for _ in train(path, **options):  # type: ignore[arg-type]
        pass
    return Transcript.open(path)


def contents(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    return finish(tmp_path_factory.mktemp("whole") / "run")


# -- killed processes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_process_continues_the_same_transcript(tmp_path: Path, whole: Transcript, seed: int) -> None:
    """SIGKILL before some change of a file; `make soak` does this at many more moments."""
    change = random.Random(seed).randrange(10, 200)
    assert soak_resume.run(tmp_path / "run", soak_resume.Kill(change=change)) is None
    assert not (tmp_path / "run" / "manifest.json").exists()
    transcript = finish(tmp_path / "run")
    assert soak_resume.same(tmp_path / "run", whole)
    assert [resumption.step for resumption in transcript.resumptions] != []
    assert verdict(tmp_path / "run") == "match"
    assert not (tmp_path / "run.resume").exists()


# -- stopped anywhere --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [1, 2, 5, 9, 11, 20])
def test_every_stop_gives_the_transcript_of_a_run_left_alone(tmp_path: Path, whole: Transcript, stop: int) -> None:
    """In the first step, in and between others, before and after an edit, after the last."""
    crash(tmp_path / "run", stop)
    finish(tmp_path / "run")
    assert soak_resume.same(tmp_path / "run", whole)


def decaying(path: Path, stop: int | None = None) -> str:
    """Trains with a rate that lies beside its formula, and a constant that lies near another formula in step 1 only."""
    formulas = {"rate": "0.9 ** t", "second": "1 - 0.999 ** t"}
    with Recorder(path, seed=3, resume=True, formulas=formulas) as recorder:
        with recorder.initialisation():
            model = nn.Linear(4, 2)
        recorder.attach(model)
        for t in range(recorder.updates + 1, 8):
            if t == stop:
                raise CrashError
            rate = math.prod([0.9] * t)
            with recorder.step(torch.full((2, 4), float(t))), torch.no_grad():
                model.weight.mul_(rate).add_(0.001)
    return Transcript.open(path).manifest.head


@pytest.mark.parametrize("stop", [2, 5])
def test_what_the_recorder_put_in_the_place_of_values_is_put_there_again(tmp_path: Path, stop: int) -> None:
    with pytest.raises(CrashError):
        decaying(tmp_path / "a" / "run", stop)
    assert decaying(tmp_path / "a" / "run") == decaying(tmp_path / "b" / "run")
    transcript = Transcript.open(tmp_path / "a" / "run")
    values = [record.values for record in transcript.records()][1:]
    assert {constant for _, constant in values} == {1 - 0.999}
    assert [rate for rate, _ in values] != [math.prod([0.9] * t) for t in range(1, 8)]
    assert verdict(tmp_path / "a" / "run") == "match"


def test_two_crashes_are_two_resumptions(tmp_path: Path, whole: Transcript) -> None:
    crash(tmp_path / "run", 6)
    crash(tmp_path / "run", 4)
    transcript = finish(tmp_path / "run")
    assert soak_resume.same(tmp_path / "run", whole)
    assert [(r.begin, r.step) for r in transcript.resumptions] == [(3, 4), (4, 5)]


def test_a_crash_while_steps_are_recomputed_changes_nothing(tmp_path: Path, whole: Transcript) -> None:
    crash(tmp_path / "run", 6)
    before = contents(tmp_path / "run")
    crash(tmp_path / "run", 1)
    assert contents(tmp_path / "run") == before
    finish(tmp_path / "run")
    assert soak_resume.same(tmp_path / "run", whole)


def test_without_what_is_beside_it_everything_is_recomputed(tmp_path: Path, whole: Transcript) -> None:
    """A loss of power may take it, torn or whole."""
    crash(tmp_path / "run", 8)
    for file in (tmp_path / "run.resume").iterdir():
        file.write_bytes(file.read_bytes()[:20])
    transcript = finish(tmp_path / "run")
    assert soak_resume.same(tmp_path / "run", whole)
    assert transcript.resumptions[0].begin == 0


def test_a_torn_last_step_and_checkpoint_are_made_anew(tmp_path: Path, whole: Transcript) -> None:
    crash(tmp_path / "run", 12)
    last = max((tmp_path / "run" / "journal").iterdir())
    last.write_bytes(last.read_bytes()[:-9])
    torn = tmp_path / "run" / "checkpoints" / "00000005.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    finish(tmp_path / "run")
    found = {file[0] for file in Transcript.open(tmp_path / "run").manifest.files}
    assert "checkpoints/00000005.safetensors" not in found  # its step is past; a replay starts from the one before
    assert Transcript.open(tmp_path / "run").manifest.head == whole.manifest.head
    assert verdict(tmp_path / "run") == "match"


def test_a_model_that_existed_before(tmp_path: Path) -> None:
    left_alone = finish(tmp_path / "whole" / "run", fresh=False)
    for stop in (1, 7):
        crash(tmp_path / str(stop) / "run", stop, fresh=False)
        finish(tmp_path / str(stop) / "run", fresh=False)
        assert soak_resume.same(tmp_path / str(stop) / "run", left_alone)


def test_any_key_signs_the_end(tmp_path: Path, whole: Transcript) -> None:
    """Nothing was signed before, so there is no earlier key to agree with."""
    key = SigningKey.generate()
    crash(tmp_path / "run", 6, key=SigningKey.generate())
    assert finish(tmp_path / "run", key=key).manifest.public == key.public
    assert soak_resume.same(tmp_path / "run", whole)


# -- refused, and nothing lost -----------------------------------------------------------------------------------------


@pytest.mark.finding("record.resume.differs")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": 8}, "another seed"),
        ({"policy": "blocked-64"}, "another policy"),
        ({"checkpoint_every": 5}, "another checkpoint_every"),
        ({"data": None}, "another data"),
        ({"width": 17}, "step 0"),
        ({"lr": 2e-2, "fresh": False}, "step 0"),
        ({"shift": 1.0}, "batch of step 3"),
    ],
    ids=["seed", "policy", "setting", "commitment", "model", "initialisation", "data"],
)
def test_another_program_is_refused_and_nothing_is_lost(
    tmp_path: Path, whole: Transcript, change: dict[str, object], says: str
) -> None:
    crash(tmp_path / "run", 6)
    before = contents(tmp_path / "run")
    with pytest.raises(UsageError, match=says) as error:
        finish(tmp_path / "run", **change)
    assert error.value.reason == "record.resume.differs"
    after = contents(tmp_path / "run")
    assert {path: data for path, data in after.items() if not path.startswith("tapes/")} == {
        path: data for path, data in before.items() if not path.startswith("tapes/")
    }
    assert before.keys() <= after.keys()
    finish(tmp_path / "run")  # the right program still can
    assert soak_resume.same(tmp_path / "run", whole)


def test_a_program_that_ends_too_early_is_refused(tmp_path: Path, whole: Transcript) -> None:
    crash(tmp_path / "run", 6)
    with pytest.raises(UsageError, match="ended at step"):
        finish(tmp_path / "run", steps=0)
    finish(tmp_path / "run")
    assert soak_resume.same(tmp_path / "run", whole)


def test_a_closed_transcript_says_so(tmp_path: Path, whole: Transcript) -> None:
    with pytest.raises(UsageError, match="complete: there is nothing to resume"):
        finish(whole.path)
    crash(tmp_path / "run", 6)
    recover(tmp_path / "run", key=SigningKey.generate())
    with pytest.raises(UsageError, match="incomplete, and closed for good"):
        finish(tmp_path / "run")
    assert verdict(tmp_path / "run") == "match"


def test_without_resume_an_exception_closes_and_a_directory_is_taken(tmp_path: Path) -> None:
    crash(tmp_path / "run", 4, resume=False)
    assert not Transcript.open(tmp_path / "run").manifest.complete
    crash(tmp_path / "other", 4)
    with pytest.raises(UsageError, match="not empty"):
        finish(tmp_path / "other", resume=False)


def test_what_was_changed_after_the_resumption_is_noticed(tmp_path: Path) -> None:
    """The state is checked before each step also when it was put back."""
    crash(tmp_path / "run", 6)
    running = train(tmp_path / "run")
    recorder = next(running)
    next(running)
    next(iter(recorder._attached.tensors().values())).data.add_(1)
    with pytest.raises(StateChangedError):
        next(running)


# -- other habits ------------------------------------------------------------------------------------------------------


def scaled(path: Path, steps: int, stop: int | None = None) -> Transcript | None:
    """Mixed precision with a gradient scaler that backs off, and SGD with momentum."""
    with Recorder(path, seed=3, resume=True, checkpoint_every=3, policy="calibrated") as recorder:
        with recorder.initialisation():
            model = nn.Linear(8, 4)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
        recorder.attach(model, optimizer, scaler=scaler)
        for update in range(recorder.updates, steps):
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(update))
            with recorder.step({"x": x}):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = model(x).square().mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            if update == stop:
                raise CrashError
    return Transcript.open(path)


def test_a_gradient_scaler_goes_on(tmp_path: Path) -> None:
    left_alone = scaled(tmp_path / "whole" / "run", 6)
    assert left_alone is not None
    with pytest.raises(CrashError):
        scaled(tmp_path / "run", 6, stop=3)
    scaled(tmp_path / "run", 6)
    assert soak_resume.same(tmp_path / "run", left_alone)


def searching(path: Path, steps: int, stop: int | None = None) -> Transcript:
    """L-BFGS, which keeps lists of tensors, on a model whose segments are computed again in the backward pass."""
    with Recorder(path, seed=3, resume=True, checkpoint_every=3) as recorder:
        with recorder.initialisation():
            layers = [nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 4)]
            model = nn.Sequential(*layers)
            optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, history_size=3)
        recorder.attach(model, optimizer)
        for update in range(recorder.updates, steps):
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(update))

            def loss(x: torch.Tensor = x) -> torch.Tensor:
                optimizer.zero_grad()
                value = checkpoint_sequential(model, 2, x, use_reentrant=False).square().mean()
                value.backward()
                return value  # type: ignore[no-any-return]

            with recorder.step({"x": x}):
                optimizer.step(loss)
            if update == stop:
                raise CrashError
    return Transcript.open(path)


@pytest.mark.parametrize("stop", [0, 3])
def test_lists_of_tensors_and_draws_recomputed_go_on(tmp_path: Path, stop: int) -> None:
    """The last draw of a step is one of its first segment, recomputed: not where its generator stands afterwards."""
    left_alone = searching(tmp_path / "whole" / "run", 5)
    with pytest.raises(CrashError):
        searching(tmp_path / "run", 5, stop=stop)
    searching(tmp_path / "run", 5)
    assert soak_resume.same(tmp_path / "run", left_alone)
    assert verdict(tmp_path / "run") == "match"


def drawing(path: Path, steps: int, stop: int | None = None) -> Transcript:
    """One generator that lives on, one made anew in each step, and an edit that loads a state saved before it."""
    with Recorder(path, seed=3, resume=True, checkpoint_every=3) as recorder:
        with recorder.initialisation():
            model = nn.Linear(8, 4)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        recorder.attach(model, optimizer)
        lasting = torch.Generator().manual_seed(17)
        for update in range(recorder.updates, steps):
            with recorder.step():
                x = torch.randn(4, 8, generator=torch.Generator().manual_seed(update))
                x = x + torch.rand(4, 8, generator=torch.Generator().manual_seed(99))
                x = x + torch.randn(4, 8, generator=lasting)
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            if update == stop:
                raise CrashError
            with recorder.edit():
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return Transcript.open(path)


@pytest.mark.parametrize("stop", [2, 3])
def test_generators_and_the_order_of_an_optimizers_state_go_on(tmp_path: Path, stop: int) -> None:
    left_alone = drawing(tmp_path / "whole" / "run", 5)
    with pytest.raises(CrashError):
        drawing(tmp_path / "run", 5, stop=stop)
    drawing(tmp_path / "run", 5)
    assert soak_resume.same(tmp_path / "run", left_alone)
    assert verdict(tmp_path / "run") == "match"


@pytest.mark.finding("record.resume.differs")
def test_groups_that_came_later_are_named(tmp_path: Path) -> None:
    def run(groups: int) -> None:
        with Recorder(tmp_path / "run", seed=3, resume=True) as recorder:
            with recorder.initialisation():
                model, more = nn.Linear(8, 4), nn.Linear(4, 4)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for _ in range(groups):
                    optimizer.add_param_group({"params": more.parameters()})
            recorder.attach(model, optimizer, more=more)
            for _ in range(2):
                with recorder.step(x := torch.ones(2, 8)):
                    more(model(x)).sum().backward()
                    optimizer.step()
            raise CrashError

    with pytest.raises(CrashError):
        run(1)
    with pytest.raises(UsageError, match="had 2 parameter groups with 4 parameters and now has 1 with 2") as caught:
        run(0)
    assert caught.value.reason == "record.resume.differs"


# -- on a chip ---------------------------------------------------------------------------------------------------------


def on_a_chip(socket: Path, run: Path, snapshots: set[int], crash: int | None = None, branch: int = 0) -> None:
    """Five steps on a chip that takes a snapshot in the middle of some of them; the last thing may be a crash.

    Branches have other data from step 4 on.
    """
    with Shim.connect(socket) as chip, Recorder(run, seed=3, resume=True, checkpoint_every=3, chip=chip) as recorder:
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder.attach(model, optimizer)
        model.register_forward_hook(lambda *_: chip.request_snapshot() if recorder.step_number in snapshots else None)
        for update in range(recorder.updates, 5):
            numbers = np.random.default_rng(update + branch * (update > 2))
            batch = {"x": torch.from_numpy(numbers.standard_normal((4, 8)).astype(np.float32))}
            with recorder.step(batch):
                loss = model(batch["x"]).square().mean()
                loss.backward()
                if recorder.step_number == crash:
                    raise CrashError
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.slow
def test_a_resumed_training_passes_an_inspection(tmp_path: Path) -> None:
    """Snapshots in the step that a crash cuts off, in one that is recomputed, and in a new one are all explained."""
    with Station(tmp_path) as station:
        station.chip("chip", prover=station.prover())
        socket, run = station.chips["chip"].socket, station.runs / "chip"
        with pytest.raises(CrashError):
            on_a_chip(socket, run, {4}, crash=4)
        on_a_chip(socket, run, {3, 5})
        transcript, report = Transcript.open(run), station.inspect("chip")
    assert [r.step for r in transcript.resumptions] == [4]
    assert [step for _, _, step, _ in transcript.resumptions[0].snapshots] == [4, 3]
    assert (report["counts"]["snapshots"], report["counts"]["explained"]) == (3, 3)
    assert ids(report, "violation") == []


def test_a_resumption_explains_no_memory_that_the_run_did_not_have(tmp_path: Path) -> None:
    """A Prover names a snapshot of another training in a resumption of an honest one."""
    with Station(tmp_path) as station:
        station.chip("chip", prover=station.prover())
        hidden = station.train("hidden", "chip")
        assert hidden.wait(timeout=120) == 0
        with pytest.raises(CrashError):
            on_a_chip(station.chips["chip"].socket, station.runs / "chip", set(), crash=4)
        # The hidden training's snapshot came first on this chip's log; the Prover writes it beside the transcript.
        with ChipClient(station.chips["chip"].address, station.verifier) as client:
            entries = [tokens.read_own(data) for data in client.entries(3)]
        index = next(i for i, token in enumerate(entries) if token.kind == "snapshot")
        beside = station.runs / "chip.resume" / "snapshots.cbor"
        beside.write_bytes(cbor([[station.ueids["chip"], index, 4, 20]]))
        on_a_chip(station.chips["chip"].socket, station.runs / "chip", set())
        report = station.inspect("chip")
    assert report["counts"]["explained"] == 0
    assert ids(report, "violation") != []


def test_one_branch_of_a_run_explains_no_snapshot_of_another(tmp_path: Path) -> None:
    """A run goes on twice from one crash. The Prover shows one branch alone, and names the other's snapshot in it.

    Both have one draft, and the running head before the step in which they part.
    """
    with Station(tmp_path) as station:
        station.chip("chip", prover=station.prover())
        socket, run = station.chips["chip"].socket, station.runs / "chip"
        with pytest.raises(CrashError):
            on_a_chip(socket, run, set(), crash=4)
        for suffix in ("", ".resume"):
            shutil.copytree(run.with_name("chip" + suffix), tmp_path / f"copy{suffix}")
        on_a_chip(socket, run, {4}, branch=100)
        hidden = Transcript.open(run)
        ((ueid, index, op),) = hidden.step(4).snapshots
        run.rename(tmp_path / "hidden")
        for suffix in ("", ".resume"):
            shutil.copytree(tmp_path / f"copy{suffix}", run.with_name("chip" + suffix))
        (station.runs / "chip.resume" / "snapshots.cbor").write_bytes(cbor([[ueid, index, 4, op]]))
        on_a_chip(socket, run, {5})
        shown, report = Transcript.open(run), station.inspect("chip")
    assert shown.draft_digest == hidden.draft_digest
    assert shown.head(3) == hidden.head(3)
    assert (report["counts"]["snapshots"], report["counts"]["explained"]) == (2, 1)
    assert {"snapshot.memory.missing", "snapshot.memory.unexplained"} <= set(ids(report, "violation"))
