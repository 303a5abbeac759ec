"""What docs/bounds.md says of probabilistic bounds, of products in blocks and of other smaller bounds, as measured.

`benchmarks.margins` writes the page; `benchmarks.bench_bounds` measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.bench_bounds import BLOCK, GROWTHS
from weighbridge.core.bound_failure import MOST_TERMS, SPREAD, failure, false_accusation
from weighbridge.numerics.arrays.blocked_products import roundings
from weighbridge.numerics.bounds import U, gamma, probable_growth
from weighbridge.numerics.conformance.bound_policy import BLOCKS

WIDE = 14_548
"""Width of a run of 1e25 FLOPs in docs/economics.md."""
_OTHERS = {
    "absolute terms": "n, and sums of absolute terms for norms",
    "probabilistic": f"the policy `probabilistic`: {SPREAD:g} sqrt(n) + 64",
}


def section(result: Mapping[str, Any]) -> str:
    """Returns the page's three sections.

    Args:
        result: What `benchmarks.bench_bounds` saved.
    """
    promises, growth = {**_promises(result), "margins": _margins(result)}, _growth(result)
    return _PROBABILISTIC.format(**promises) + _BLOCKED.format(**_blocked(result)) + _SMALLER.format(**growth)


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
    }


def _blocked(result: Mapping[str, Any]) -> dict[str, Any]:
    found = result["blocked"]["found"]
    strict = found["strict"]
    rows = [
        f"| `{name}` | {each['entries']:,} | {each['bytes']:,} | {each['bytes'] / strict['bytes']:.2f} | "
        f"{each['seconds'] / strict['seconds']:.2f} |"
        for name, each in found.items()
    ]
    times = {name: [each["ratios"][name] for each in result["split"]["found"]] for name in BLOCKS}
    return {
        "blocked_on": _on(result["blocked"]),
        "rows": "\n".join(rows),
        "names": " and ".join(f"`{name}`" for name in BLOCKS),
        "wide": WIDE,
        "counts": " and ".join(f"{roundings(WIDE, block):,} (`{name}`)" for name, block in BLOCKS.items()),
        "wide_probable": _probable(WIDE) / U,
        "split_on": _on(result["split"]),
        "times": " and ".join(f"{min(each):.2f} to {max(each):.2f} (`{name}`)" for name, each in times.items()),
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

_BLOCKED = """## Products in blocks

Under the policies {names}, products of matrices of float32 are computed in blocks of terms, and strict bounds count
fewer roundings. They are as certain as `strict`: no assumption is made, and every other bound is as in `mixed`.

**What is computed.** A product whose sums have K terms is evaluated in float64 as it is if K is at most b, the number
in the policy's name. Else the summed dimension is split into parts of l = ceil(K / m) terms, of which the last may have
fewer, with m = ceil(K / max(b, floor(sqrt K))); m is then counted anew as ceil(K / l). The product of each part is
computed by the library, which may add its terms in any order, with or without fused multiply-add. Each is then added to
the sum of those before it, by an addition of its own: a library that is given a matrix to add to may begin with it, and
then all terms of a part would follow on it. For `addmm`, `baddbmm` and `addmv` the sum is multiplied by alpha, what is
added by beta, and both are added.

**Its bound.** Let S be the sum of the absolute terms, and S_i that of part i.

1. Terms are exact: a product of two float32 numbers has at most 48 bits, and float64 holds it.
2. The sum of part i passes each term through at most l - 1 additions, whatever the order. So it errs by at most
   gamma(l - 1) * S_i (Higham 2002, section 4.2).
3. Part i then passes through at most m - 1 additions. Each term thus has at most l - 1 + m - 1 factors 1 + delta with
   |delta| <= u, and the product errs by at most gamma(l + m - 2) * S (ibid., lemma 3.1).
4. Multiplications by alpha and beta and the last addition are one factor each on a term's way, three more at most.

In the rules of these operations, K becomes l + m where K is more than b: gamma(l + m + 2) * norm(row) * norm(column),
which covers step 3, and gamma(l + m + 6) where something is added, which covers step 4. Tests compare this with exact
sums for terms of several kinds in seven orders within a part, and have operands that come within 3 units of the l + m
that are counted, so nearly nothing is given away.

**What is split.** `mm`, `addmm`, `bmm`, `baddbmm`, `mv` and `addmv`, in place too, where they are computed in float64.
So are linear layers, attention and their gradients, which consist of these. Not split, and with the bounds of `mixed`:
`dot`, which has one result; convolutions, which could be, along channels and batch, but are not; sums; a user's
operators; and all that is computed in float32, whose bounds are measured on whole products.

**Who splits.** The draft names the policy, and sizes alone say where a product is split
(`weighbridge.numerics.operations.prescribed_products`). Recording, compiled steps, replays on each device, logs made on
demand, disputes and the [second Executor](second-executor.md) all do. Bits of results may differ from those of other
policies. A Prover who computes or logs with other blocks than the draft says has bounds that a replay does not have:
where its results lie beyond them, the replay is a mismatch, a dispute finds its claim false, and logs made on demand do
not explain them. Within them it gains nothing: smaller blocks than the declared ones, or blocks under a policy without
any, are an order that the declared bound covers. Each rank of a job is replayed under the bounds of its own draft. A
recording is resumed under its own policy only; a run that goes on from another one has a draft of its own.

**What it saves and costs.** Steps of GPT-2 11 M in float32, all policies in turn ({blocked_on}; three steps from random
weights; time is the least processor time of a recorded step, over that under `strict`, on a shared machine):

| policy | entries a step | bytes a step | of strict | time of strict |
|---|---:|---:|---:|---:|
{rows}

Split products alone take {times} times as long as whole ones ({split_on}; processor time, five shapes of GPT-2s of
11 M and 124 M). For the {wide:,} terms of a width of 1e25 FLOPs, {counts} roundings are counted where
strict bounds count {wide:,} and probabilistic ones {wide_probable:,.0f}.

"""

_SMALLER = """## Products of a unit that truncates

Under the policies `unit-a100` and `unit-h100`, products of 16 bits whose sums have at most 4,096 terms have bounds of
the unit itself, made of partial sums: see [matrix units](matrix-units.md#bounds-of-their-own). They are measured on
the unit's model, which keeps half of them on data of five kinds, and have the same bits on every machine. To the
unit's bound comes a sixteenth of it, for the replayer's own rounding to float32, and 4 units of 2^-24 of what is
added to the product. Longer sums are prescribed to the bit.

## Smaller bounds that were not taken

Strict bounds hold for any order of summation, so they count n roundings for n terms. What a step of GPT-2 11 M logs
in float32 if they are counted otherwise ({growth_on}; the first step from random weights; nothing replays under these
bounds, they are only counted):

| roundings counted for n terms | entries | bytes | of strict |
|---|---:|---:|---:|
{rows}

{products:.0%} of the entries under strict bounds are of products of matrices.

- **Blocked orders** are [policies of their own](#products-in-blocks), for products of matrices. With blocks of {block}
  terms in all rules, logs would be {blocks:.0%} shorter at this width; with blocks of 32, {small:.0%}, at more time. No
  order gives more than pairs do, {pairs:.0%}. Libraries (MKL, oneDNN, cuBLAS) guarantee none of these orders within a
  product.
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
