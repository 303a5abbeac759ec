"""Inspections that miss things: unnoticed tampering, and replays that accept what they should not.

On a sampled involved chip the Prover has two ways. Left alone, the chip shows the run if it holds a snapshot (w) and
the replay does not miss it (1 - replay_missed). Tampered with, it shows nothing but the tampering (1 -
tampering_missed). A Prover tampers with the fraction of involved chips that suits it; what is worst for the Verifier is
all or none.

These misses are independent from chip to chip. A transcript that fools the Verifier fools it on every chip of the run
at once, so the soundness error of replay multiplies the whole p instead: `with_soundness_error`.
"""

from __future__ import annotations

import numpy as np

from analysis.domain import FloatArray, Numbers, plain, share, together


def shown_probability(
    *, snapshot: Numbers, replay_missed: Numbers, tampering_missed: Numbers, tampered: Numbers
) -> FloatArray:
    """Returns the probability that a sampled involved chip shows the run, one way or the other.

    (1 - tau) w (1 - replay_missed) + tau (1 - tampering_missed).

    Args:
        snapshot: Probability that the chip holds a snapshot of the run (w), 0 to 1.
        replay_missed: Probability that a snapshot's replay wrongly passes, independently for each chip, 0 to 1.
        tampering_missed: Probability that the inspection of a tampered chip does not notice, 0 to 1.
        tampered: Fraction of involved chips that the Prover tampers with (tau), 0 to 1.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    w, lost, unseen, part = together(
        share("snapshot", snapshot),
        share("replay_missed", replay_missed),
        share("tampering_missed", tampering_missed),
        share("tampered", tampered),
    )
    return plain((1 - part) * w * (1 - lost) + part * (1 - unseen))


def worst_shown_probability(*, snapshot: Numbers, replay_missed: Numbers, tampering_missed: Numbers) -> FloatArray:
    """Returns `shown_probability` for the Prover who tampers with all involved chips or none, whichever hides more.

    Args:
        snapshot: Probability that the chip holds a snapshot of the run (w), 0 to 1.
        replay_missed: Probability that a snapshot's replay wrongly passes, 0 to 1.
        tampering_missed: Probability that the inspection of a tampered chip does not notice, 0 to 1.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    ways = [
        shown_probability(
            snapshot=snapshot, replay_missed=replay_missed, tampering_missed=tampering_missed, tampered=tampered
        )
        for tampered in (0.0, 1.0)
    ]
    return plain(np.minimum(*ways))


def with_soundness_error(*, probability: Numbers, soundness_error: Numbers) -> FloatArray:
    """Returns p (1 - eps): what is left of p if a spoof passes every replay with probability eps.

    The miss is (1 - p) + p eps. This is what appendix D of the paper means; see `docs/paper.md`, errata E5 and E6.

    Args:
        probability: Probability that an inspection meets a snapshot of the run (p), 0 to 1.
        soundness_error: Largest probability that the Verifier accepts a spoofed transcript (eps), 0 to 1.

    Raises:
        DetectionDomainError: An argument is out of range.
    """
    seen, error = together(share("probability", probability), share("soundness_error", soundness_error))
    return plain(seen * (1 - error))
