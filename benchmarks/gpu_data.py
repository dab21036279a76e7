"""Counts of the model, made on a card and brought to the host."""

from __future__ import annotations

import numpy as np
import torch

from log1pnmf.counts.compress import SparseRows
from log1pnmf.counts.counts import Counts

CASES = {
    "100k": {"n": 100_000, "m": 20_000, "K": 16, "density": 0.05},
    "PBMC": {"n": 3_774, "m": 16_791, "K": 6, "density": 0.043},
    "7606": {"n": 7_606, "m": 18_195, "K": 13, "density": 0.18},
    "1M": {"n": 1_000_000, "m": 20_000, "K": 16, "density": 0.05},
}


def simulate(n, m, K, density, *, seed=0, device="cuda"):
    """Counts of the model at c = 1, made on the card; and loadings and factors near the truth."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def part(rows):
        """The paper's mixture at c = 1: mostly U(0, 0.16), a tenth exponential with a rate per factor."""
        values = torch.rand((rows, K), generator=generator, device=device)
        rates = 1.25 + 8.75 * torch.rand(K, generator=generator, device=device)
        peaks = torch.rand((rows, K), generator=generator, device=device) < 0.1
        return torch.where(peaks, -torch.log1p(-values) / rates, 0.16 * values)

    L, F = part(n), 0.3 * part(m)
    L[:, 0], baseline = 1.0, -torch.log1p(-torch.rand(m, generator=generator, device=device))
    low, high = 1e-4, 10.0
    for _ in range(40):  # the baseline makes the density
        F[:, 0] = baseline * (middle := (low * high) ** 0.5)
        mean = torch.expm1(L[:2000] @ F.T)
        low, high = (low, middle) if float((1 - torch.exp(-mean)).mean()) > density else (middle, high)
    lengths, indices, values = [], [], []
    for block in L.split(max(1, 50_000_000 // m)):
        y = torch.poisson(torch.expm1(block @ F.T), generator=generator)
        lengths.append((y > 0).sum(1))
        at = torch.nonzero(y)
        indices.append(at[:, 1].int())
        values.append(y[at[:, 0], at[:, 1]])
    indptr = np.concatenate(([0], np.cumsum(torch.cat(lengths).cpu().numpy()))).astype(np.int64)
    entries = (torch.cat(one).cpu().numpy() for one in (indices, values))
    counts = Counts(SparseRows((n, m), indptr, *entries))
    noise = [torch.rand(x.shape, generator=generator, device=device) + 0.5 for x in (L, F)]
    return counts, (L * noise[0]).double(), (F * noise[1]).double()
