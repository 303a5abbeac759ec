"""What docs/bounds.md says of probabilistic bounds, and of bounds that would be smaller, from what was measured.

`benchmarks.margins` writes the page; `benchmarks.bench_bounds` measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.bench_bounds import BLOCK, GROWTHS
from weighbridge.core.bound_failure import MOST_TERMS, SPREAD, failure, false_accusation
from weighbridge.numerics.bounds import U, gamma, probable_growth

WIDE = 14_548
"""Width of a run of 1e25 FLOPs in docs/economics.md."""
_OTHERS = {
    "absolute terms": "n, and sums of absolute terms for norms",
    "probabilistic": f"the policy `probabilistic`: {SPREAD:g} sqrt(n) + 64",
}


def section(result: Mapping[str, Any]) -> str:
    """Returns the page's two sections.

    Args:
        result: What `benchmarks.bench_bounds` saved.
    """
    return _PROBABILISTIC.format(**_promises(result), margins=_margins(result)) + _SMALLER.format(**_growth(result))


def _probable(n: int) -> float:
    with probable_growth():
        return gamma(n)


def _on(part: Mapping[str, Any]) -> str:
    return "{date}: {processor}, {capability}, torch {torch}".format(**part["machine"])


def _promises(result: Mapping[str, Any]) -> dict[str, Any]:
    step = result["steps"]["found"]["rounded"]
    found = result["margins"]["found"]
    honest = [each for each in found if each["terms"] != "constants"]
    constants = [each for each in found if each["terms"] == "constants"]
    assert all(each["outside_from"] is None for each in honest), "a sum of independent terms left its bound"
    outside = [each["outside_from"] for each in constants if each["outside_from"]]
    return {
        "spread": SPREAD,
        "most": f"2^{MOST_TERMS.hex().partition('p+')[2]}",
        "each": failure(1),
        "step": step,
        "of_step": failure(step),
        "accused": false_accusation(step),
        "replayed": false_accusation(step * 10**6),
        "same": next(n for n in range(1, 1 << 20) if _probable(n) < gamma(n)) - 1,
        "steps_on": _on(result["steps"]),
        "margins_on": _on(result["margins"]),
        "largest": max(each["margin"] for each in honest),
        "constant": max(each["margin"] for each in constants),
        "outside": min(outside) if outside else 0,
    }


def _margins(result: Mapping[str, Any]) -> str:
    rows = [
        f"| {each['terms']} | {each['order']} | {each['margin']:.4f} | {each['at']:,} | "
        f"{(each['outside_from'] and format(each['outside_from'], ',')) or 'none'} |"
        for each in result["margins"]["found"]
    ]
    return "\n".join(rows)


def _growth(result: Mapping[str, Any]) -> dict[str, Any]:
    found = result["growth"]["found"]
    strict = found["strict"]
    words = {**{name: text for name, (text, _) in GROWTHS.items()}, **_OTHERS}
    rows = [
        f"| {words[name]} | {each['entries']:,} | {each['bytes']:,} | {each['bytes'] / strict['bytes']:.2f} |"
        for name, each in found.items()
    ]
    products = sum(strict["by_operation"].get(name, 0) for name in ("mm.default", "addmm.default", "bmm.default"))
    shares = {name: 1 - found[name]["bytes"] / strict["bytes"] for name in found}
    return {
        "growth_on": _on(result["growth"]),
        "rows": "\n".join(rows),
        "products": products / strict["entries"],
        "block": BLOCK,
        "blocks": shares["blocks"],
        "small": shares["small blocks"],
        "pairs": shares["pairs"],
        "sharp": shares["absolute terms"],
        "probable": shares["probabilistic"],
        "wide": WIDE,
        "wide_blocks": GROWTHS["blocks"][1](WIDE),
        "wide_probable": _probable(WIDE) / U,
        "split_on": _on(result["split"]),
        "least": min(each["ratio"] for each in result["split"]["found"]),
        "most_time": max(each["ratio"] for each in result["split"]["found"]),
    }


_PROBABILISTIC = """## Probabilistic bounds

Under the policy `probabilistic`, what is computed in float64 has bounds that grow with the root of n. They are those
of N. J. Higham and T. Mary, *A New Approach to Probabilistic Rounding Error Analysis*, SIAM Journal on Scientific
Computing 41 (2019):

- **Theorem 2.4.** If the errors delta_1, ..., delta_n of n roundings are independent random variables with mean zero
  and |delta_i| <= u, the product of all 1 + delta_i, or their inverses, is 1 + theta with |theta| <= exp(lambda
  sqrt(n) u + n u^2/(1 - u)) - 1, with a probability of at least 1 - 2 exp(-lambda^2 (1 - u)^2 / 2).
- **Theorem 3.1.** A sum of n terms in any order then errs by at most that times the sum of absolute terms, with a
  probability of at least 1 - 2 n exp(-lambda^2 (1 - u)^2 / 2): one failure for each term.

In the rules, gamma(n) becomes min(n*u/(1 - n*u), exp(lambda sqrt(n) u + n u^2/(1 - u)) - 1 + 64*u), with lambda =
{spread:g}. The 64*u cover errors of functions that rules count as roundings: they belong to no sum, so they may all
have one sign. Up to n = {same} the first is less, and nothing changes; everything but gamma is as in strict bounds.

**How probably one fails** (`weighbridge.core.bound_failure`). An element's sums have fewer than {most} terms, so one
bound fails for one machine's result with a probability of at most {most} * 2 exp(-{spread:g}^2 / 2) = {each:.1e}.
Those of N elements add up. A step of GPT-2 124 M on 64 tokens rounds {step:,} ({steps_on}): {of_step:.1e}. Recorder
and replayer must both stay within their bounds, so a replay of the step accuses an honest Prover with a probability
of at most {accused:.1e}, and one of a million such steps with {replayed:.1e}. Replays and
[reports](reports.md#false-accusations) state this for what they rounded. It concerns false accusations alone; smaller
bounds leave a Prover fewer choices.

**What it assumes** is not proven, and does not always hold. Rounding errors are no random variables. They are fixed
by the operands, and those of equal terms that are added one by one have one sign over long stretches. Errors of dot
products of float32 operands in float64, over the bound that is made of their absolute terms, for 256 to 262,144 terms
({margins_on}; sums in long doubles stand for the exact ones):

| operands | order | largest error / bound | at terms | outside from |
|---|---|---:|---:|---:|
{margins}

Random operands use {largest:.0%} of the bound at most. **Products of constant rows with constant columns leave it**,
from {outside:,} terms on, by up to {constant:.1f} times here, with a library's own kernel. Rows and columns of
constants are rare in training, but a Prover or a defect may make them. Where such a result is next to a rounding
boundary, the two machines may differ without a log entry. The replay then is inconclusive and accuses no party if a
few changed elements explain it, and a mismatch otherwise. Take `strict` or `mixed`, the default, where that matters
more than the size of logs.

"""

_SMALLER = """## Smaller bounds that were not taken

Strict bounds hold for any order of summation, so they count n roundings for n terms. What a step of GPT-2 11 M logs
in float32 if they are counted otherwise ({growth_on}; the first step from random weights; nothing replays under these
bounds, they are only counted):

| roundings counted for n terms | entries | bytes | of strict |
|---|---:|---:|---:|
{rows}

{products:.0%} of the entries under strict bounds are of products of matrices.

- **Blocked orders.** If every machine added blocks of {block} terms and then their sums, gamma(n) would become
  gamma({block} + n/{block}), and logs {blocks:.0%} shorter at this width; with blocks of 32, {small:.0%}. No order
  gives more than pairs do, {pairs:.0%}. For the {wide:,} terms of a width of 1e25 FLOPs, blocks would count
  {wide_blocks:,.0f} roundings where strict bounds count {wide:,} and probabilistic ones {wide_probable:,.0f}. That
  needs no assumption. Libraries (MKL, oneDNN, cuBLAS) guarantee no order within a product. But it can be split into
  products of {block} terms each, in any order within, which an operation of ours adds one after the other. Split
  products in float64 take {least:.2f} to {most_time:.2f} times as long as whole ones ({split_on}; processor time,
  blocks of {block}, five shapes of GPT-2s of 11 M
  and 124 M). **This is worth a policy of its own, and there is none yet**: all that
  evaluates products would have to split them alike (Recorder, compiled steps, replays on each device, logs made on
  demand, disputes, the second Executor), convolutions too, and the draft to say so.
- **Sums of our own** (`weighbridge.numerics.operations.sums`) are in blocks already, on the CPU; a replayer on a
  GPU takes PyTorch's kernel, so their bound is for any order. They are too small a part of the log to change that
  alone.
- **Tighter norms.** Bounds of products have norm(row) * norm(column) for the sum of absolute terms. Taking that
  itself makes logs {sharp:.0%} shorter, and costs a second product in float64 for each. It is taken where a value
  is near zero, where it is worth most.
- **Probabilistic bounds** make them {probable:.0%} shorter, need no order, and cost no time; what they cost is the
  assumption above.

`strict` stays as it is. A bound cannot change for transcripts that exist (above), so each of these is another table
of rules, or a policy of its own.

"""
