"""How much of its bound each rounded rule uses: the largest error over the bound that was observed, in many ways.

`python -m benchmarks.margins` measures, writes `results/margins.json` and docs/bounds.md; with `--table` only the page.
With `--only RULE ...` it measures these rules alone and keeps the rest of the result: for lines that are new.

The operations of tests/support/operator_examples are evaluated in float32 with the bounds for u = 2^-24, and
compared with the same evaluated in float64, beside which float32's errors are 2^29 times larger: PyTorch's kernels
under every instruction set of the machine in fresh processes, and sums of products in other orders, in parts, one after
the other, with and without fused multiply-add. Where there is a formula in long doubles, the float64 kernels are
compared with it too, with the bounds that recording uses.
"""

from __future__ import annotations

import argparse
import inspect
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.bound_errors import EXACT_SQUARES, copied, error_bound, listen, reductions, single_precision
from support.operator_examples import EXAMPLES, REFERENCES, STYLES, Example, Maker, long

from benchmarks import machine
from benchmarks.bounds_page import section
from weighbridge.numerics.bounds import Line
from weighbridge.numerics.conformance.switches import conforming
from weighbridge.numerics.operations.embeddings import used_rows
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rule_table import FAMILIES
from weighbridge.numerics.schemas import bind

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "bounds.md"
aten = torch.ops.aten
Tensor = torch.Tensor
Seen = list[tuple[Tensor, Bound]]


class Anywhere(Maker):
    """Also makes operands so far from zero that what a kernel subtracts late loses most of its digits."""

    def __call__(self, *shape: int) -> Tensor:
        """Returns an operand of the style."""
        return super().__call__(*shape) + 3000 if self.style == "far" else super().__call__(*shape)


EVERY_STYLE = (*STYLES, "far")
ENVIRONMENTS: Mapping[str, machine.Environment] = {"own": machine.HERE, **machine.ELSEWHERE}


# --- other ways of computing ----------------------------------------------------------------------------------------


def in_parts(a: Tensor, b: Tensor) -> Tensor:
    """A product of matrices as the sum of three."""
    parts = [a[..., i::3] @ b[..., i::3, :] for i in range(3)]
    return parts[2] + (parts[0] + parts[1])


def one_by_one(a: Tensor, b: Tensor) -> Tensor:
    """A product of matrices as running sums, each product rounded."""
    out = a.new_zeros(a.shape[:-1] + b.shape[-1:])
    for k in range(a.shape[-1]):
        out = out + a[..., k, None] * b[..., k, None, :]
    return out


def fused(a: Tensor, b: Tensor) -> Tensor:
    """Running sums with fused multiply-add: float64 holds a product of float32 numbers exactly."""
    out = a.new_zeros(a.shape[:-1] + b.shape[-1:])
    for k in range(a.shape[-1]):
        out = (out.double() + a[..., k, None].double() * b[..., k, None, :].double()).float()
    return out


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "in parts": in_parts,
    "one by one": one_by_one,
    "one by one, fused": fused,
}


def products(example: Example) -> Iterator[tuple[str, list[Tensor]]]:
    """Yields float32 results of a product computed without its kernel."""
    name, args = example.op._schema.name.partition("::")[2], example.args
    for way, multiply in PRODUCTS.items():
        if name in ("mm", "bmm"):
            yield way, [multiply(*args)]
        elif name == "mv":
            yield way, [multiply(args[0], args[1][:, None])[:, 0]]
        elif name in ("dot", "vdot"):
            yield way, [multiply(args[0][None], args[1][:, None])[0, 0]]
        elif name in ("addmm", "baddbmm"):
            beta, alpha = example.kwargs.get("beta", 1), example.kwargs.get("alpha", 1)
            yield way, [args[0] * beta + multiply(args[1], args[2]) * alpha]
        elif name == "convolution" and args[0].dim() == 4 and not args[6] and args[8] == 1:
            x, w, bias = args[:3]
            stride, padding, dilation = ([*size, *size][:2] for size in args[3:6])  # one number is for both dimensions
            columns = torch.nn.functional.unfold(x, list(w.shape[2:]), dilation, padding, stride)
            shape = aten.convolution.default(*args).shape
            out = multiply(w.flatten(1), columns).reshape(shape)
            yield way, [out if bias is None else out + bias.view(1, -1, 1, 1)]
        elif (
            name in ("sum", "mean") and example.op._overloadname == "dim_IntList" and args[1] == [1] and len(args) == 2
        ):
            ones = torch.ones(args[0].shape[1], 1)
            yield way, [multiply(args[0].movedim(1, -1), ones)[..., 0]]


def kernel(example: Example) -> list[Tensor]:
    """Float32 results of PyTorch's kernel."""
    args = [copied(a) for a in example.args]
    out = example.op(*args, **copied(example.kwargs))
    found = [t for t in (out if isinstance(out, (tuple, list)) else [out]) if t is not None and t.is_floating_point()]
    if example.op is aten.embedding_dense_backward.default:  # rows that are not used are not computed
        found = [found[0][used_rows(bind(example.op, example.args, example.kwargs))[0]]]
    return found


# --- measuring ------------------------------------------------------------------------------------------------------


class Margins:
    """The largest ratio of error to bound by rule, and how it was found."""

    def __init__(self) -> None:
        self.rules: dict[str, dict[str, Any]] = {}

    def add(self, key: str, way: str, seen: Seen, found: list[Any]) -> None:
        """Compares float32 results with wide ones; where float32 runs out of range, float64 does not."""
        for (wide, bound), t in zip(seen, found, strict=False):
            inside = ((wide.abs() > 1e-32) & (wide.abs() < 1e32)) | (wide == 0)
            error, e = (t.double() - wide).abs()[inside], error_bound(wide, bound)[inside]
            self.note(key, way, (error / e).nan_to_num(0).reshape(-1).numpy())

    def note(self, key: str, way: str, ratios: np.ndarray[Any, Any]) -> None:
        """Adds observed ratios."""
        entry = self.rules.setdefault(key, {"margin": 0.0, "way": way, "elements": 0})
        entry["elements"] += int(ratios.size)
        worst = float(ratios.max()) if ratios.size else 0.0
        if worst > entry["margin"]:
            entry.update(margin=worst, way=way)

    def merge(self, other: dict[str, dict[str, Any]], environment: str) -> None:
        """Adds what another process found."""
        for key, found in other.items():
            entry = self.rules.setdefault(key, {"margin": 0.0, "way": "", "elements": 0})
            entry["elements"] += found["elements"]
            if not entry["way"] or found["margin"] > entry["margin"]:
                entry.update(margin=found["margin"], way=f"{found['way']} ({environment})")


def measure(seeds: int, only: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Returns the margins of rounded rules, all or some, in this process, over so many seeds of each style."""
    margins = Margins()
    with conforming(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(seeds):
            for style in EVERY_STYLE:
                for key in only or EXAMPLES:
                    for example in EXAMPLES[key](Anywhere(style, seed=seed)):
                        _one(margins, key, example)
                for n in (6, 33, 1000) if seed % 4 == 0 else (33,):
                    if not only:
                        _orders(margins, Anywhere(style, seed=seed), n)
    return margins.rules


def _one(margins: Margins, key: str, example: Example) -> None:
    if key not in EXACT_SQUARES:
        with single_precision():
            seen, _ = listen(example)
        margins.add(key, "kernel", seen, kernel(example))
        for way, results in products(example):
            margins.add(key, way, seen, results)
    if key in REFERENCES:
        seen, _ = listen(example)
        seen = [(wide, bound) for wide, bound in seen if wide.numel()]
        for (wide, bound), exact in zip(seen, REFERENCES[key](*example.args, **example.kwargs), strict=True):
            error = np.abs(long(wide) - exact.reshape(wide.shape))
            ratios = np.asarray(error / np.maximum(error_bound(wide, bound).numpy(), 1e-300), dtype=np.float64)
            margins.note(key, "float64 kernel against long doubles", ratios)


def _orders(margins: Margins, make: Maker, n: int) -> None:
    order = torch.randperm(n, generator=make.generator)
    for first, second in reductions(make, order):
        key = f"{first.op._schema.name.partition('::')[2]}.{first.op._overloadname or 'default'}"
        with single_precision():
            seen, _ = listen(first)
        margins.add(key, "another order", seen, kernel(second))
        for way, results in products(second):
            margins.add(key, f"another order, {way}", seen, results)


# --- the page -------------------------------------------------------------------------------------------------------


def _words(line: Line) -> tuple[str, str]:
    """The function that makes the bound of a line, or is it, and the bound in words, with the parameters."""
    family = line.bound.__qualname__.partition(".")[0]
    owner = inspect.getmodule(line.bound)
    text = line.words or (inspect.getdoc(getattr(owner, family)) or "").partition("\n")[0].rstrip(".")
    free = inspect.getclosurevars(line.bound).nonlocals
    values = {
        k: v.__name__.strip("_") if callable(v) else f"{v:g}" if isinstance(v, float) else v for k, v in free.items()
    }
    parameters = ", ".join(f"{k} = {v}" for k, v in sorted(values.items()))
    return family, f"{text} ({parameters})" if parameters else text


def page(result: Mapping[str, Any], growth: Mapping[str, Any]) -> str:
    """Returns docs/bounds.md.

    Args:
        result: Measured margins.
        growth: What `benchmarks.bench_bounds` measured.
    """
    rows = sorted((*_words(line), key, line.source) for f in FAMILIES for line in f.LINES for key in line.keys)
    lines = []
    for _, words, key, source in rows:
        found = result["rules"].get(key)
        margin = f"{found['margin']:.3f} | {found['way']}" if found else "not measured | "
        lines.append(f"| `{key}` | {words.replace('|', chr(92) + '|')} | {source} | {margin} |")
    ways = ", ".join(f"{name}: {capability}" for name, capability in result["environments"].items())
    return _INTRODUCTION + section(growth) + _HEAD.format(**result, ways=ways) + "\n".join(lines) + "\n"


_INTRODUCTION = """# Bounds

Written by `python -m benchmarks.margins`; a test compares this page with `benchmarks/results/margins.json`,
`bounds.json` beside it (written by `python -m benchmarks.bench_bounds`) and the code. For each rounded rule: its
bound in words, where that comes from, and its *margin*, the largest error divided by the bound that was observed. A
margin below 1 means that no error left the bound; a small one means that the bound is wide, which costs log entries
and nothing else.

u is the unit roundoff of the wide type, 2^-53 for float64, and gamma(n) = n*u/(1 - n*u) bounds n successive
roundings. K and n count what is summed. Bounds hold for any order of summation, with or without fused multiply-add,
rounding to nearest (`weighbridge.numerics.bounds`). Winograd, Fourier and NNPACK convolutions, TF32, split
bfloat16 and accumulation in 16 bits do not, so recording and replay switch them off
(`weighbridge.numerics.conformance.switches`) and first test every device they use with small integer products,
convolutions and subnormal numbers that only a conforming device gets right
(`weighbridge.numerics.conformance.probes`). A device that fails is refused with `device.arithmetic`.

**A bound cannot change for transcripts that exist.** The bits of a log's entry count from the lower end of the range
that the bound gives, so a transcript replays under the bound it was recorded with. There is one table of rules, not
one for each version: a draft names its digest, and what was recorded under another is refused
(`replay.rules.unknown`), not replayed under the old bounds. The digest has the name of a bound's function and not its
constants. So a function whose bound changes needs another name; else old transcripts replay under bounds that are not
theirs. `tests/weighbridge/numerics/test_bound_constants.py` keeps what each bound comes to for fixed operands, beside
the digest, and fails where the one changes without the other.
Two versions side by side would need the bound to follow from the draft in six places: recording, its
continuation, replay, logs made on demand, disputes, and the second Executor, with a user's own rules in either digest.
That is not done for the sake of one constant.

**Known limit.** Library functions are taken to be within 4 ulp, but `gelu_backward` with `approximate="tanh"` allows
its tanh less: near |x| = 7 the kernel takes 1 - tanh^2 where tanh is nearly 1, and multiplies by up to 27 |gradient|.
A tanh that is wrong by 2u there stays within the bound (0.90 of it, emulated by
`tests/weighbridge/numerics/families/test_activations.py`); one that is wrong by 4u, two units of 2^-52, needs 1.70
times the bound, some 240u*|gradient|. The largest error that was measured is in the table. A device with such a tanh
could round elements otherwise that are that close to a tie, without a log entry, and its honest recording would be a
mismatch. The constant is to be raised together with the next change that makes a new table of rules necessary.

"""

_HEAD = """## Rules

Measured on {date}: {processor}, torch {torch}, Python {python}; {elements:,} elements in {seeds} seeds of 4 styles
(normal, around 30, around 3000, of very different size); instruction sets {ways}. Operations were evaluated in
float32 with the bounds for u = 2^-24 and compared with float64: by PyTorch's kernel, and sums of products also in
another order, in parts, one by one, and one by one with fused multiply-add. Some float64 kernels were compared with
formulas in long doubles too.

Sources: N. J. Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd edition, SIAM 2002. T. F. Chan, G. H.
Golub, R. J. LeVeque, *Algorithms for computing the sample variance*, The American Statistician 37 (1983). P.
Blanchard, D. J. Higham, N. J. Higham, *Accurately computing the log-sum-exp and softmax functions*, IMA Journal of
Numerical Analysis 41 (2021). R. G. Keys, *Cubic convolution interpolation for digital image processing*, IEEE
Transactions on Acoustics, Speech, and Signal Processing 29 (1981). Maxima of error of functions: CUDA C++ Programming
Guide, "Mathematical Functions"; SLEEF's list of functions (`_u10`); the GNU C Library manual, "Known Maximum Errors
in Math Functions".

| rule | bound | source | margin | largest by |
|---|---|---|---:|---|
"""


def _kept(measured: Mapping[str, Any]) -> dict[str, Any]:
    """The saved result, which must be of the same machine, versions and seeds: the page names one of each.

    Its date stays, which is that of most rules.
    """
    saved = machine.load("margins") or {}
    facts = ("processor", "machine", "torch", "python", "seeds", "environments")
    other = [fact for fact in facts if measured[fact] != saved.get(fact)]
    assert not other, f"the saved result differs in {', '.join(other)}: measure all rules"
    return saved


def main() -> None:
    """Measures in fresh processes, one for each instruction set, and writes the result and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=24, help="seeds of each style")
    parser.add_argument("--only", nargs="*", default=[], metavar="RULE", help="measure these rules, keep the others")
    parser.add_argument("--measure", action="store_true", help="measure in this process and print JSON")
    parser.add_argument("--table", action="store_true", help="write the page from the result file only")
    options = parser.parse_args()
    if options.measure:
        found = {"capability": torch.backends.cpu.get_cpu_capability(), "rules": measure(options.seeds, options.only)}
        print(json.dumps(found))
        return
    if not options.table:
        margins, capabilities = Margins(), {}
        asked = ["--measure", f"--seeds={options.seeds}", "--only", *options.only]
        for name, environment in ENVIRONMENTS.items():
            answer = machine.ask("benchmarks.margins", *asked, environment=environment)
            capabilities[name] = answer["capability"]
            margins.merge(answer["rules"], answer["capability"])
        facts = {**machine.about(), "seeds": options.seeds, "elements": 0, "environments": capabilities, "rules": {}}
        found = _kept(facts) if options.only else facts
        rules = {**found["rules"], **margins.rules}
        found.update(elements=sum(entry["elements"] for entry in rules.values()), rules=dict(sorted(rules.items())))
        machine.save("margins", found)
    result = machine.load("margins")
    growth = machine.load("bounds")
    assert result is not None, "measure first: python -m benchmarks.margins"
    assert growth is not None, "measure first: python -m benchmarks.bench_bounds"
    PAGE.write_text(page(result, growth), encoding="utf-8")


if __name__ == "__main__":
    main()
