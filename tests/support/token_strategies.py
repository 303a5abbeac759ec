"""Strategies: the bodies of tokens, of each kind."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from weighbridge.attest.work import END

digest = st.binary(min_size=32, max_size=32)
count = st.integers(0, (1 << 63) - 1)
large = st.integers(0, END - 1)
text = st.text(st.characters(min_codepoint=32, max_codepoint=0x24F, categories=("L", "N")), min_size=1, max_size=100)
BOOT = {"salt_digest": digest, "rate_milli": count, "hold": count, "reporting": text, "witness": digest}
OPTIONS = {"clock_milli": count, "forced": st.booleans(), "unserved": st.booleans()}
BODIES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "boot": st.fixed_dictionaries(BOOT)  # of earlier firmware
    | st.fixed_dictionaries({**BOOT, **OPTIONS})  # likewise
    | st.fixed_dictionaries({**BOOT, **OPTIONS, "confidential": st.booleans()}),
    "event": st.fixed_dictionaries({"name": text, "digest": digest}),
    "head": st.fixed_dictionaries({"size": count, "last": digest, "root": digest, "log_key": digest, "counter": count}),
    "snapshot": st.sampled_from([(True, True), (False, True), (False, False)]).flatmap(
        lambda case: st.fixed_dictionaries(
            {
                "root": digest,
                "leaves": count,
                "bytes": count,
                "weights_root": digest,
                "weights_bytes": count,
                "salt_digest": digest,
                "head": digest if case[1] else st.just(b""),
                "running": digest if case[0] else st.just(b""),
                "step": count if case[1] else st.just(-1),
                "op": count if case[1] else st.just(-1),
                "safepoint": st.just(case[0]),
                "held": count,
                "kernels": large,
                "flops": large,
                "stall_us": count,
                "unobserved": count,
            }
        )
    ),
}
