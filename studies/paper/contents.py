"""Every table, figure and theorem of the paper, and its statements about data: where it is tested here."""

from __future__ import annotations

from typing import NamedTuple


class Item(NamedTuple):
    """One part of the paper.

    Parameters
    ----------
    place, what : str
        Where it is in the paper, and what it shows.
    study : str or None
        Module of `paper` that tests it.
    remark : str
        What differs, or why it is not here.
    """

    place: str
    what: str
    study: str | None
    remark: str = ""


NO_DATA = "not made: the mouse pancreas counts are not at hand"
STAND_IN = "on blood cells with and without interferon-beta instead of the mouse pancreas"

CONTENTS = (
    Item("Figure 1", "the link function", "link_figure"),
    Item("Theorem 1", "large c: standard Poisson NMF", "theory"),
    Item("Theorem 2", "small c: factors are log fold changes", "theory"),
    Item("Theorem 3", "the log-likelihood is bi-concave", "theory"),
    Item("Algorithm 1, Appendix C", "alternating coordinate ascent", "mcf7", "used by all faithful fits"),
    Item("Table 1, Appendix B", "cost of a log-likelihood", "complexity"),
    Item("Figure 2", "cost as n, K and sparsity vary", "complexity"),
    Item("Figure 3", "accuracy of the approximation", "approximation"),
    Item("Section 3.4", "size factors and the multinomial model", "theory"),
    Item("Section 4", "sizes of the data sets", "data_sets", "MCF-7 has 40 genes more here"),
    Item("Figure 4", "MCF-7: sample scores, gene scores, top genes", "mcf7", "PyDESeq2 instead of DESeq2"),
    Item("Figure 5 and its table", "pancreas: factors of cell types, top genes", None, NO_DATA),
    Item("Figure 6", "pancreas: delta and gamma cells", None, NO_DATA),
    Item("Figure 7 and its table", "pancreas: factors of treatments, top genes", None, NO_DATA),
    Item("Section 4.2", "one factor holds a treatment at c = 1, not at c = inf", "cytokine", STAND_IN),
    Item("Figure 8 and its table", "BBC: document scores, top words", "bbc"),
    Item("Section 4.3", "ranks of dicaprio and foxx among the words of entertainment articles", "bbc"),
    Item("Section 4.3", "sports articles, the football factor k7, memberships", "bbc"),
    Item("Section 4.3", "which article scores highest on k7", None, "not made: our file has no texts"),
    Item("Figure 9, A to C", "MCF-7: sparsity and correlation across c", "across_c"),
    Item("Figure 9, D to F", "pancreas: sparsity and correlation across c", "across_c", STAND_IN),
    Item("Figure 9, G to I", "BBC: sparsity and correlation across c", "across_c", "converged fits only"),
    Item("Figures 10 and 11", "exact, approximate and Frobenius fits", "cytokine", f"as a table, {STAND_IN}"),
    Item("Theorem 4, Figure 12", "geometry as c falls to 0", "theory"),
    Item("Figure 13", "MCF-7: structure plots across c", "structures"),
    Item("Figure 14", "pancreas: structure plots across c", "structures", STAND_IN),
    Item("Figure 15", "BBC: structure plots across c", "structures"),
)
