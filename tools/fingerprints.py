"""Fit a fixed set of small problems and print a fingerprint of each: equal lines are equal bits.

    python -m tools.fingerprints > before; git switch ...; python -m tools.fingerprints | diff before -

Only `log1pnmf.Log1pNMF` is used, and everything that decides a fit is passed, so that other defaults and
another layout of the package do not matter. A line holds the name of a fit, the SHA-256 of the bytes of
`components_` and `loadings_`, and the log-likelihood. Compare on one machine: compilers and builds of NumPy
round differently. The log-likelihoods of a few are in tests/golden.json, which holds on any machine to eight
digits (``--write``).
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import warnings
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf import Log1pNMF

SHIFTS = (0.1, 1.0, 10.0, math.inf)
N, M, K = 30, 24, 3
GOLDEN = Path(__file__).parents[1] / "tests" / "golden.json"

DEFAULT = {"likelihood": "auto", "init": "auto", "max_iter": 300, "engine": "auto"}
"""What a fit decides by itself."""


class Chunks:
    """Counts as a sequence of row blocks, as `log1pnmf.open_counts` takes them."""

    def __init__(self, counts: np.ndarray, size: int) -> None:
        self.counts, self.size, self.shape = counts, size, counts.shape

    def __len__(self) -> int:
        return math.ceil(len(self.counts) / self.size)

    def __getitem__(self, i: int) -> np.ndarray:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self.counts[i * self.size : (i + 1) * self.size]


def made_up_counts() -> np.ndarray:
    """Counts of three groups of samples, with an empty row and an empty column."""
    rng = np.random.default_rng(20)
    memberships = 0.1 + np.repeat(np.eye(K), N // K, axis=0)
    rates = memberships @ rng.gamma(0.4, 2.0, size=(K, M)) * rng.gamma(5.0, 0.2, size=(N, 1))
    counts = rng.poisson(rates)
    counts[7], counts[:, 11] = 0, 0
    return counts


def settings() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name every fit and give the parameters in which it differs from the first."""
    for c in SHIFTS:
        for likelihood in ("exact", "chebyshev", "taylor", "adaptive"):
            yield f"native {likelihood} c={c:g}", {"c": c, "likelihood": likelihood}
        for init in ("random", "nndsvd"):
            yield f"native init={init} c={c:g}", {"c": c, "init": init}
        yield f"native l1 c={c:g}", {"c": c, "l1": 3.0}
        yield f"native coordinate c={c:g}", {"c": c, "row_solver": "coordinate"}
        yield f"native coordinate l1 c={c:g}", {"c": c, "l1": 3.0, "row_solver": "coordinate"}
        yield f"native sizes=none c={c:g}", {"c": c, "size_factors": "none"}
        yield f"native n_init=3 c={c:g}", {"c": c, "init": "random", "n_init": 3}
        for likelihood in ("exact", "chebyshev", "adaptive"):
            changed = {"c": c, "likelihood": likelihood, "engine": "streaming"}
            yield f"streaming {likelihood} c={c:g}", changed
        yield f"streaming l1 c={c:g}", {"c": c, "l1": 3.0, "engine": "streaming"}
    yield "native generator", {"init": "random", "random_state": np.random.default_rng(5)}
    for noise in ("poisson", "nb"):
        yield f"default {noise}", {**DEFAULT, "noise": noise}
    yield "default sizes=fit", {**DEFAULT, "size_factors": "fit"}


def fits(only: Container[str] | None = None) -> Iterator[tuple[str, Log1pNMF]]:
    """Fit everything, or what is named."""
    counts, rng = made_up_counts(), np.random.default_rng(21)
    common = {
        "likelihood": "exact",
        "size_factors": "total",
        "init": "rank1",
        "n_init": 1,
        "l1": 0.0,
        "row_solver": "newton",
        "max_iter": 15,
        "tol": 1e-7,
        "engine": "native",
        "random_state": 3,
    }
    for name, changed in settings():
        if only is not None and name not in only:
            continue
        data = Chunks(counts, 12) if changed.get("engine") == "streaming" else counts
        yield name, Log1pNMF(K, **{"c": 1.0, **common, **changed}).fit(data)
    if only is not None:
        return
    start = rng.uniform(0.1, 1.0, (N, K)), rng.uniform(0.1, 1.0, (M, K))
    yield "given start", Log1pNMF(K, c=1.0, **{**common, "init": start}).fit(counts)
    yield "given size factors", Log1pNMF(K, c=1.0, **common).fit(counts, size_factors=rng.gamma(5.0, 0.2, N))
    model = Log1pNMF(K, c=1.0, **common).fit(counts)
    for name, changed, n in (
        ("goes on", {}, N),
        ("more factors", {"n_components": K + 1}, N),
        ("other link", {"c": 10.0}, N),
        ("fewer factors", {"n_components": K - 1}, N),
        ("fewer samples", {}, N // 2),
    ):
        yield f"from a fit: {name}", model.set_params(**changed, init=model.fit_).fit(counts[:n])
    more = Log1pNMF(K, c=1.0, **common).fit(counts[:20])
    more.loadings_of_new = more.transform(counts[20:])
    yield "transform", more


def line(name: str, model: Log1pNMF) -> str:
    """Describe a fit; of one that has them, the loadings of new samples take the place of its own."""
    loadings = getattr(model, "loadings_of_new", model.loadings_)
    digests = [
        hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]
        for values in (model.components_, loadings)
    ]
    return f"{name:34} {' '.join(digests)} {model.log_likelihood_!r}"


GOLDEN_NAMES = [
    *(f"native {kind} c={c:g}" for kind in ("exact", "chebyshev", "adaptive") for c in (0.1, 1.0)),
    *(f"native {what}" for what in ("exact c=inf", "l1 c=1", "coordinate c=1", "n_init=3 c=1")),
    *("streaming exact c=1", "default poisson", "default nb", "default sizes=fit"),
]

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if "--write" in sys.argv:
        found = {name: model.log_likelihood_ for name, model in fits(only=GOLDEN_NAMES)}
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    else:
        for one in fits():
            print(line(*one), flush=True)
