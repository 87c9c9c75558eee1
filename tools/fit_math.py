#!/usr/bin/env python3
"""Fits the polynomials of model/math.h, and prints their coefficients as C has them.

    python3 tools/fit_math.py       needs mpmath and numpy

A fit is the minimax one (Lawson's weighted least squares, in f64) of values that mpmath computes.
Then a coefficient is rounded to f32, the lowest first, and the others are fitted again without it.
The printed error is the largest one of the function that the polynomial is for, in units of 2^-24
of the function: as if every step but the coefficients were exact.
"""

import mpmath as mp
import numpy as np

mp.mp.dps = 40
POINTS, ROUNDS = 800, 300


def lawson(x, y, weight, powers):
    """The coefficients whose largest weighted error is the least."""
    a = x[:, None] ** np.array(powers) * weight[:, None]
    w = np.full(len(x), 1 / len(x))
    for _ in range(ROUNDS):
        c = np.linalg.lstsq(a * np.sqrt(w)[:, None], y * weight * np.sqrt(w), rcond=None)[0]
        w *= np.abs(a @ c - y * weight) + 1e-30
        w /= w.sum()
    return c


def fit(name, low, high, degree, variable, of, weight):
    """of(t) as a polynomial of variable(t), where an error counts weight(t) times."""
    t = [mp.mpf(low) + (mp.mpf(high) - low) * (1 - mp.cos(mp.pi * (i + mp.mpf(1) / 2) / POINTS)) / 2
         for i in range(POINTS)]
    x, y, w = (np.array([float(f(s)) for s in t]) for f in (variable, of, weight))
    left, done = y.copy(), []
    for k in range(degree + 1):
        c = np.float32(lawson(x, left, w, range(k, degree + 1))[0])
        done.append(c)
        left = left - float(c) * x ** k
    print(f"{name}: {np.abs(left * w).max() * 2 ** 24:.3f}")
    print(*(f"    {float(c).hex().replace('0000000p', 'p')}f" for c in reversed(done)), sep="\n")


def main():
    same = lambda t: t
    square = lambda t: t * t
    ln2 = mp.log(2)
    # e^r = 1 + r + r^2 / 2 + r^3 P(r)
    fit("exp", -ln2 / 2, ln2 / 2, 3, same, lambda r: (mp.expm1(r) - r - r * r / 2) / r ** 3,
        lambda r: r ** 3 / mp.exp(r))
    # ln(1 + u) = 2s + s^3 P(s^2), s = u / (2 + u)
    fit("log1p", 1e-3, mp.mpf(1) / 3, 3, square, lambda s: (2 * mp.atanh(s) - 2 * s) / s ** 3,
        lambda s: s ** 3 / (2 * mp.atanh(s)))
    # tanh x = x + x^3 P(x^2)
    fit("tanh", 1e-3, 0.625, 4, square, lambda x: (mp.tanh(x) - x) / x ** 3,
        lambda x: x ** 3 / mp.tanh(x))
    # erf x = x + x P(x^2)
    fit("erf near 0", 1e-3, 0.875, 5, square, lambda x: mp.erf(x) / x - 1, lambda x: x / mp.erf(x))
    # erf x = 1 - e^-(x P(x))
    fit("erf", 0.875, 4, 5, same, lambda x: -mp.log(mp.erfc(x)) / x,
        lambda x: x * mp.erfc(x) / mp.erf(x))


if __name__ == "__main__":
    main()
