"""The paper's results, from data to figure: a module per study, ``python -m studies.paper`` for all."""
