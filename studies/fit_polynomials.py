"""Print the polynomial coefficients of cpp/simd.hpp: near-minimax, by Chebyshev interpolation in 50 digits.

expm1(r) = r + r^2 Q(r)            on |r| <= ln(2)/2
log(m)   = 2 s + s^3 P(s^2)        with s = (m-1)/(m+1), m in [sqrt(1/2), sqrt(2)]
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp

mp.mp.dps = 50


def interpolate(f: Callable[[mp.mpf], mp.mpf], low: mp.mpf, high: mp.mpf, degree: int) -> list[mp.mpf]:
    """Coefficients (constant first) of the interpolant of f at the Chebyshev points of [low, high]."""
    count = degree + 1
    nodes = [
        (low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * count)) for i in range(count)
    ]
    vandermonde = mp.matrix([[x**power for power in range(count)] for x in nodes])
    return list(mp.lu_solve(vandermonde, mp.matrix([f(x) for x in nodes])))


def main() -> None:
    half = mp.log(2) / 2 * mp.mpf("1.0001")
    smax = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * mp.mpf("1.0001")

    def expm1_tail(r: mp.mpf) -> mp.mpf:
        return mp.mpf(1) / 2 if r == 0 else (mp.expm1(r) - r) / r**2

    def log_tail(z: mp.mpf) -> mp.mpf:
        s = mp.sqrt(z)
        return (2 * mp.atanh(s) - 2 * s) / s**3

    for name, tail, low, high, degree in [
        ("expm1 Q", expm1_tail, -half, half, 9),
        ("log P", log_tail, mp.mpf("1e-30"), smax, 5),
    ]:
        coefficients = interpolate(tail, low, high, degree)
        grid = [low + (high - low) * i / 997 for i in range(998)]
        error = max(abs(sum(a * x**k for k, a in enumerate(coefficients)) - tail(x)) for x in grid)
        print(f"// {name}, degree {degree}, largest error {mp.nstr(error, 3)}")
        for a in coefficients:
            print(f"    {mp.nstr(a, 20)},")


if __name__ == "__main__":
    main()
