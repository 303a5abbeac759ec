"""The process in which a whole job is replayed: `workers.job_worker`, as `replay_worker` for one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weighbridge.core.errors import UsageError
from weighbridge.execution.recognition.in_replay import choose
from weighbridge.execution.recognition.meetings import Meeting, Meetings
from weighbridge.execution.virtual_ranks import Rendezvous, VirtualRank, in_turn
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.execution.workers.serving import serve
from weighbridge.transcript.job_record import MeshCoordinate, check_coordinate, rank_name, read_job
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import folder_of


class JobReplay:
    """One replay of all ranks of a job, in turn."""

    def __init__(
        self, request: dict[str, Any], confined: list[str], send: Any, rendezvous: Rendezvous | None = None
    ) -> None:
        """Opens the transcripts of all ranks and checks that each is that of its rank.

        Args:
            request: As for `Replay`, with the job's directory as `path`; `stop` is (rank, step, operations complete).
            confined: Restrictions in force.
            send: Takes messages about progress.
            rendezvous: Where the ranks meet, for those who want to see what is exchanged.

        Raises:
            WeighbridgeError: A transcript is damaged, or another rank's.
        """
        path = Path(request["path"])
        self._record = read_job(path)
        ranks = self._record.ranks
        self._stop: int | None = None
        first = 0 if request["steps"] is None else int(request["steps"][0])
        stop = None
        if request["stop"] is not None:
            self._stop, stop = int(request["stop"][0]), [int(n) for n in request["stop"][1:]]
            if not 0 <= self._stop < ranks:
                raise UsageError(f"the job has ranks 0:{ranks}; there is no rank {self._stop}")
            first = stop[0]
        transcripts = [Transcript.open(path / rank_name(rank)) for rank in range(ranks)]
        for rank, transcript in enumerate(transcripts):
            check_coordinate(self._record, rank, MeshCoordinate.of(transcript.draft))
        common = set.intersection(*(set(t.checkpoint_steps) for t in transcripts))
        begin = max([step for step in common if step <= first], default=0)
        self._rendezvous = rendezvous or Rendezvous(ranks)
        incomplete = {rank: t.steps for rank, t in enumerate(transcripts) if not t.manifest.complete}
        self._rendezvous.cut.update(incomplete)
        self._replays = []
        meetings = None
        if request.get("recognise") is not None:
            last = min(t.steps for t in transcripts) if request["steps"] is None else int(request["steps"][1])
            count, draw = request["recognise"]
            together = []
            for step in range(begin, min(last, *(t.steps for t in transcripts))):
                records = [each.step(step) for each in transcripts]
                if all(each.kind == "step" for each in records):
                    together.append((step, b"".join(each.tape for each in records)))
            meetings = Meetings(self._rendezvous.turns, ranks, set(choose(together, int(count), int(draw))))
        for rank, transcript in enumerate(transcripts):
            mine = {**request, "path": str(path / rank_name(rank)), "begin": begin, "stop": None}
            if (made := folder_of(path / rank_name(rank))).is_dir():
                mine["supplements"] = str(made)
            if stop is not None:
                # The others go on until what is asked for has been reached; they may have to finish that step.
                others = {"steps": [0, min(stop[0] + 1, transcript.steps)]}
                mine.update({"stop": stop} if rank == self._stop else others)
            elif request["steps"] is not None and first < request["steps"][1] <= max(t.steps for t in transcripts):
                # A crash may have cut off a rank before; the others then wait for it in vain, and say so.
                end = min(int(request["steps"][1]), transcript.steps)
                mine["steps"] = [first if first < end else 0, end]
            virtual = VirtualRank(self._rendezvous, rank)
            progress = send if rank == 0 else lambda message: None
            meeting = None if meetings is None else Meeting(meetings, rank)
            self._replays.append(Replay(mine, confined, progress, virtual, meeting))

    def run(self) -> dict[str, Any]:
        """Runs all ranks; returns the result as JSON.

        Raises:
            WeighbridgeError: A rank could not be executed.
        """
        answers = in_turn(
            self._rendezvous.turns,
            [replay.run for replay in self._replays],
            lambda rank, answer: answer["verdict"] != "match" or rank == self._stop,
        )
        order = ("mismatch", "inconclusive", "match")
        answered = [(rank, a) for rank, a in enumerate(answers) if a is not None]
        rank, worst = min(answered, key=lambda item: order.index(item[1]["verdict"]))
        return {
            "job": self._record.id.hex(),
            "verdict": worst["verdict"],
            "rank": None if worst["verdict"] == "match" else rank,
            "ranks": answers,
        }


def main() -> None:
    """Answers one request for a replay of a job."""
    serve(lambda request, confined, send: JobReplay(request, confined, send).run())


if __name__ == "__main__":
    main()
