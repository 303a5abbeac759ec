"""The units that are declared, by name.

Every number here is from Khattak and Mikaitis (arXiv 2512.07004) and Xie et al. (arXiv 2511.10909), who found them on
the hardware; `nvidia`, `amd`, `x86` and `arm` say what they mean.
"""

from __future__ import annotations

import torch

from weighbridge.core.errors import UsageError
from weighbridge.numerics.units.amd import ExactSum, FlooredSum, FlushedSum
from weighbridge.numerics.units.arithmetic import Arithmetic
from weighbridge.numerics.units.arm import NearestPair, OddPair
from weighbridge.numerics.units.formats import BF16, E4M3, E4M3_FNUZ, E5M2, E5M2_FNUZ, FP16, TF32, Format
from weighbridge.numerics.units.nvidia import TruncatedSum, TwoHalves
from weighbridge.numerics.units.unit import Evidence, Operation, Unit
from weighbridge.numerics.units.x86 import PairOfFused, TileOfFused

_FP8 = (E4M3, E5M2)


def _into_float32(evidence: Evidence, arithmetic: Arithmetic, *formats: Format) -> Operation:
    return Operation(formats, torch.float32, arithmetic, evidence)


def _into_float16(evidence: Evidence, arithmetic: Arithmetic, *formats: Format) -> Operation:
    return Operation(formats, torch.float16, arithmetic, evidence)


def _tensor_core(products: int, fraction: int, zero: int, bf16: bool = True) -> tuple[Operation, ...]:
    """Operations on 16 bits, and on tf32 where there is bf16 too.

    Args:
        products: Of a block of 16 bits.
        fraction: Bits kept below the largest exponent.
        zero: Exponent of a zero term, for float32 results; for float16 results it is 112 more.
        bf16: Whether there is bf16.
    """
    wide = TruncatedSum(products, fraction, zero)
    halved = TruncatedSum(products // 2, fraction, zero)
    fp16 = (
        _into_float32("hardware", wide, FP16),
        _into_float16("hardware", TruncatedSum(products, fraction, zero + 112, kept=None), FP16),
    )
    return (*fp16, _into_float32("hardware", wide, BF16), _into_float32("hardware", halved, TF32)) if bf16 else fp16


_AMPERE = _tensor_core(products=8, fraction=24, zero=-132)
_HOPPER = _tensor_core(products=16, fraction=25, zero=-133)

_UNITS = (
    Unit("v100", "NVIDIA V100 (Volta)", _tensor_core(products=4, fraction=23, zero=-131, bf16=False)),
    Unit("a100", "NVIDIA A100, A2 (Ampere)", _AMPERE, aliases=("a2",)),
    Unit(
        "ada",
        "NVIDIA RTX 4000 Ada, L40S (Ada Lovelace)",
        (
            *_AMPERE,
            _into_float32("hardware", TruncatedSum(16, 13, -132, kept=13), *_FP8),
            _into_float16("hardware", TruncatedSum(16, 13, -20, kept=None), *_FP8),
        ),
        aliases=("l40s",),
    ),
    Unit(
        "h100",
        "NVIDIA H100, H200 (Hopper), 8-bit formats by `wgmma`",
        (
            *_HOPPER,
            _into_float32("hardware", TruncatedSum(32, 13, -133, kept=13), *_FP8),
            _into_float16("simulator", TruncatedSum(32, 13, -21, kept=None), *_FP8),
        ),
        aliases=("h200",),
    ),
    Unit(
        "b200",
        "NVIDIA B200 (Blackwell), 8-bit formats by `tcgen05`",
        (
            *_HOPPER,
            _into_float32("simulator", TruncatedSum(32, 25, -133), *_FP8),
            _into_float16("simulator", TruncatedSum(32, 25, -21, kept=None), *_FP8),
        ),
    ),
    Unit(
        "mma-fp8",
        "NVIDIA H100, H200, B200: 8-bit formats by `mma.sync`",
        (
            _into_float32("hardware", TwoHalves(TruncatedSum(16, 25, -133)), *_FP8),
            _into_float16("hardware", TwoHalves(TruncatedSum(16, 25, -21, kept=None)), *_FP8),
        ),
    ),
    Unit(
        "mi100",
        "AMD MI100 (CDNA1)",
        (_into_float32("simulator", ExactSum(2), BF16), _into_float32("simulator", ExactSum(4), FP16)),
    ),
    Unit(
        "mi200",
        "AMD MI200 (CDNA2), bf16 by `_1k`",
        (_into_float32("simulator", FlushedSum(4), BF16), _into_float32("simulator", FlushedSum(4), FP16)),
    ),
    Unit("mi200-pairs", "AMD MI200 (CDNA2), bf16 without `_1k`", (_into_float32("simulator", FlushedSum(2), BF16),)),
    Unit(
        "mi300",
        "AMD MI300 (CDNA3)",
        (
            _into_float32("simulator", FlooredSum(8), BF16),
            _into_float32("simulator", FlooredSum(8), FP16),
            _into_float32("simulator", FlooredSum(4), TF32),
            _into_float32("simulator", FlooredSum(16, halves=True), E4M3_FNUZ, E5M2_FNUZ),
        ),
    ),
    Unit("vdpbf16ps", "x86 AVX512_BF16", (_into_float32("hardware", PairOfFused(), BF16),)),
    Unit(
        "amx",
        "Intel AMX: TDPBF16PS, TDPFP16PS",
        (_into_float32("documents", TileOfFused(), BF16), _into_float32("documents", TileOfFused(), FP16)),
    ),
    Unit("bfdot", "Arm BFDOT, BFMMLA", (_into_float32("documents", OddPair(), BF16),), aliases=("bfmmla",)),
    Unit("bfdot-ebf", "Arm BFDOT, BFMMLA with FPCR.EBF = 1", (_into_float32("documents", NearestPair(), BF16),)),
)
_BY_NAME = {name: unit for unit in _UNITS for name in (unit.name, *unit.aliases)}


def names() -> list[str]:
    """Returns the names of all units, without aliases."""
    return [unit.name for unit in _UNITS]


def named(name: str) -> Unit:
    """Returns a unit by its name or an alias.

    Raises:
        UsageError: There is none.
    """
    if name not in _BY_NAME:
        raise UsageError(f"there is no matrix unit {name!r}; choose one of {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
