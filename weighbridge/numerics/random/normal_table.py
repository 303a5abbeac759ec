"""Makes `normal_table.txt`, the committed coefficients behind `philox.normal_float32`.

Run `python -m weighbridge.numerics.random.normal_table` to write it anew. The table is data, not code: two SciPy
versions may differ in the last bit of a coefficient, so the committed file, not this script, defines the variates.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.special import ndtri

from weighbridge.numerics.random.philox import DEGREE, OCTAVES, PIECES


def coefficients() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Returns the polynomials in t in [0, 1) that interpolate the inverse normal distribution, by octave and piece.

    The tail probability is u = 2^-(2 + octave) * (1 + (piece + t) / PIECES).
    """
    nodes = 0.5 - 0.5 * np.cos((2 * np.arange(DEGREE + 1) + 1) * np.pi / (2 * DEGREE + 2))
    rows = []
    for octave in range(OCTAVES):
        for piece in range(PIECES):
            u = 2.0 ** -(2 + octave) * (1 + (piece + nodes) / PIECES)
            rows.append(np.linalg.solve(np.vander(nodes, increasing=True), ndtri(u)))
    return np.array(rows)


def main() -> None:
    """Writes the table beside this module."""
    lines = ["# inverse normal distribution, rows octave*16+piece, columns t^0..t^4, C99 hexadecimal floats"]
    lines += [" ".join(float(v).hex() for v in row) for row in coefficients()]
    (Path(__file__).parent / "normal_table.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
