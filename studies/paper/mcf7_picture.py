"""What an analyst reads from a fit of MCF-7: a baseline and a factor for each treatment."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import spearmanr

from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.ranking import ranking_of
from studies.paper.published import MCF7_GENES

GROUPS = ("EtOH", "RA", "TGFb", "RA+TGFb")


class Picture:
    """What is read from a fit: columns of L with maximum 1, in the order baseline, RA, TGFb.

    Parameters
    ----------
    fit : Fit
    data : AnnData
    baseline : int, optional
        Its column; by default the one that the untreated samples load on most.
    """

    def __init__(self, fit: Fit, data: Any, baseline: int | None = None) -> None:
        size, labels = fit.loadings.max(axis=0), np.asarray(data.obs["label"])
        loadings = fit.loadings / size
        means = {group: loadings[labels == group].mean(axis=0) for group in GROUPS}
        first = int(np.argmax(means["EtOH"])) if baseline is None else baseline
        others = [k for k in range(3) if k != first]
        ra = max(others, key=lambda k: float(means["RA"][k] - means["TGFb"][k]))
        self.order = [first, ra, *(k for k in others if k != ra)]
        self.means = {group: mean[self.order] for group, mean in means.items()}
        self.loadings = loadings[:, self.order]
        self.factors = (fit.factors * size)[:, self.order]
        self.symbols = np.asarray(data.var["Symbol"])
        self.c = fit.c
        ranking = ranking_of(fit)
        self.leading = [list(self.symbols[ranking.top(k, 10)]) for k in self.order]

    def top_genes(self, k: int, n: int = 10) -> list[str]:
        """Genes with the largest factor entries."""
        return list(self.symbols[np.argsort(-self.factors[:, k])[:n]])

    def found(self) -> list[int]:
        """How many of the paper's genes are among the first ten: baseline, RA, TGFb."""
        lists = MCF7_GENES[self.c].values()
        return [len(set(self.top_genes(k)) & set(genes)) for k, genes in enumerate(lists)]

    def found_by_fold_change(self) -> list[int]:
        """How many of the paper's genes are among the ten that the factor raises most."""
        lists = MCF7_GENES[self.c].values()
        return [len(set(first) & set(genes)) for first, genes in zip(self.leading, lists, strict=True)]

    @property
    def correlation(self) -> float:
        """Spearman correlation of the two treatment factors."""
        return float(spearmanr(self.factors[:, 1], self.factors[:, 2])[0])

    @property
    def least_baseline(self) -> float:
        """Smallest mean baseline loading of a group."""
        return min(float(means[0]) for means in self.means.values())


def untreated_column(fit: Fit, data: Any) -> int:
    """Column that the untreated samples load on most."""
    return Picture(fit, data).order[0]
