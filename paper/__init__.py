"""The paper's results, from data to figure: one module per study, ``python -m paper`` for all of them."""
