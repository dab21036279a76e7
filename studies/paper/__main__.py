"""Run all studies, one after the other, and write the page of results."""

from __future__ import annotations

import time
from importlib import import_module

from studies.paper.results import STUDIES, main
from studies.paper.study import parse, quiet

if __name__ == "__main__":
    options = parse(__doc__)
    began = time.perf_counter()
    for name in STUDIES:
        with quiet():
            import_module(f"studies.paper.{name}").study(options)
        main(options)
    print(f"{(time.perf_counter() - began) / 60:.1f} minutes", flush=True)
