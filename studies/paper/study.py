"""What every study shares: its options, fits that are kept, and the results it leaves."""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.run import about
from sklearn.exceptions import ConvergenceWarning

from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.fit_counts import ApproximationWarning

ROOT = Path(__file__).resolve().parents[2]
LARGEST_FIGURE = 200_000  # bytes: figures are part of the repository


@dataclass(frozen=True)
class Options:
    """How the studies are run.

    Parameters
    ----------
    data : Path
        Folder of the count matrices.
    results : Path
        Where tables and figures go.
    fits : Path
        Where fits are kept.
    quick : bool
        Little data and few iterations: tries the code, not the claims.
    fresh : bool
        Fit again what was kept from an earlier run.
    jobs : int
        Threads.
    began : float
        When the run began: a fit that was kept after that is as good as a fresh one.
    """

    data: Path
    results: Path
    fits: Path
    quick: bool = False
    fresh: bool = False
    jobs: int = 2
    began: float = field(default_factory=time.time)

    def pick(self, whole: Any, quick: Any) -> Any:
        """Choose between a setting of the study and that of a quick try."""
        return quick if self.quick else whole

    def read(self, name: str) -> Any:
        """AnnData of that name."""
        import anndata

        path = self.data / f"{name}.h5ad"
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing; name the folder that has it with --data")
        return anndata.read_h5ad(path)


def parse(description: str | None, arguments: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--out", type=Path, help="folder of the results (default: studies/paper/results)")
    parser.add_argument("--fits", type=Path, default=ROOT / "paper-out", help="folder where fits are kept")
    parser.add_argument("--quick", action="store_true", help="little data, few iterations: tries the code")
    parser.add_argument("--fresh", action="store_true", help="fit again what an earlier run has kept")
    parser.add_argument("--jobs", type=int, default=2, help="threads")
    given = parser.parse_args(arguments)
    fits = given.fits / "quick" if given.quick else given.fits
    results = given.out or (fits / "results" if given.quick else ROOT / "studies" / "paper" / "results")
    return Options(given.data, results, fits, given.quick, given.fresh, given.jobs)


def run(study: Callable[[Options], None], description: str | None) -> None:
    """Run a study as a program."""
    options = parse(description)
    with quiet():
        study(options)


class quiet(warnings.catch_warnings):  # noqa: N801  (a context manager, used like a function)
    """Without the warnings that belong to what is studied: fits that are stopped on purpose."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", ApproximationWarning)


# ---------------------------------------------------------------- fits


class Fits:
    """Fits of one data set, kept on disk under their settings.

    Parameters
    ----------
    options : Options
    data : str
        Name of the data set.
    """

    def __init__(self, options: Options, data: str) -> None:
        self.options = options
        self.folder = options.fits / data
        self.folder.mkdir(parents=True, exist_ok=True)
        self.spent = Spent()  # on fits made by this study
        self.taken: dict[str, Spent] = {}  # by every fit that it uses
        self._seen: dict[str, Fit] = {}
        self._cost: dict[int, Spent] = {}

    def get(self, make: Callable[[], Fit], **settings: Any) -> Fit:
        """Read the fit with these settings, or make and keep it."""
        name = "_".join(f"{key}={_short(value)}" for key, value in settings.items())
        if name in self._seen:
            return self._seen[name]
        path, costs = self.folder / f"{name}.npz", self.folder / f"{name}.json"
        if path.exists() and (not self.options.fresh or path.stat().st_mtime >= self.options.began):
            fit, how = Fit.load(path), "kept from before"
            taken = Spent(**json.loads(costs.read_text()))
        else:
            clock = Clock()
            fit, how = make(), "fitted"
            taken = clock.read()
            costs.write_text(json.dumps(taken._asdict()))
            fit.save(path)
            self.spent += taken
        print(f"  {self.folder.name} {name}: {how}, {taken}, {fit.n_iter} iterations", flush=True)
        self._seen[name] = fit
        self._cost[id(fit)] = self.taken[f"{self.folder.name}/{name}"] = taken
        return fit

    def cost(self, fit: Fit) -> Spent:
        """What it took to make one of these fits."""
        return self._cost[id(fit)]


class Spent(NamedTuple):
    """Seconds of all threads together, and on the clock on the wall."""

    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0

    def __add__(self, other: tuple[Any, ...]) -> Spent:
        return Spent(self[0] + other[0], self[1] + other[1])

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self[0] - other[0], self[1] - other[1])

    def __str__(self) -> str:
        return f"{self.wall_seconds:.0f} s ({self.cpu_seconds:.0f} CPU s)"


class Clock:
    """What has been spent since it was made."""

    def __init__(self) -> None:
        self._began = self._now()

    def read(self) -> Spent:
        """Read it."""
        return self._now() - self._began

    @staticmethod
    def _now() -> Spent:
        return Spent(time.process_time(), time.perf_counter())


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def last_gain(fit: Fit) -> float:
    """Gain of the objective in the last iteration."""
    objective = fit.history["objective"]
    return float(objective[-2] - objective[-1]) if len(objective) > 1 else math.nan


def best(fits: Iterable[Fit]) -> Fit:
    """Fit with the lowest objective; if some are approximate, that with the highest exact log-likelihood."""
    found = list(fits)
    if any(fit.approximate_log_likelihood is not None for fit in found):
        return max(found, key=lambda fit: float(fit.log_likelihood or -math.inf))
    return min(found, key=lambda fit: fit.objective)


# ---------------------------------------------------------------- results


class Report:
    """What a study found: claims, tables, figures and notes, written as files.

    Parameters
    ----------
    options : Options
    name, title : str
        Of the study.
    """

    def __init__(self, options: Options, name: str, title: str) -> None:
        self.options, self.name = options, name
        self._clock = Clock()
        self._fits: list[Fits] = []
        self.content: dict[str, Any] = {"title": title, "claims": [], "parts": []}
        options.results.mkdir(parents=True, exist_ok=True)
        print(title, flush=True)

    def fits(self, data: str) -> Fits:
        """Fits of a data set, whose time is counted for this study."""
        self._fits.append(Fits(self.options, data))
        return self._fits[-1]

    def claim(self, claim: str, *, paper: str, ours: str, agrees: bool | None, spread: str = "") -> None:
        """Set a claim of the paper beside what was found; `agrees` is None where nothing can be compared."""
        judged = None if agrees is None else bool(agrees)
        row = {"claim": claim, "paper": paper, "ours": ours, "agrees": judged, "spread": spread}
        self.content["claims"].append(row)
        print(f"    {claim}: paper {paper}; ours {ours}; agrees {judged}", flush=True)

    def note(self, text: str) -> None:
        """Write a sentence on the page."""
        self.content["parts"].append({"kind": "note", "text": text})

    def table(self, name: str, rows: Sequence[Mapping[str, Any]], caption: str, *, show: bool = True) -> None:
        """Write a CSV table; `show`: also on the page."""
        path = self.options.results / f"{self.name}-{name}.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows({key: _number(value) for key, value in row.items()} for row in rows)
        self.content["parts"].append({"kind": "table", "file": path.name, "caption": caption, "show": show})

    def figure(self, name: str, figure: Any, caption: str) -> None:
        """Write a PNG figure, small enough to be part of a repository."""
        from matplotlib import pyplot
        from PIL import Image

        path = self.options.results / f"{self.name}-{name}.png"
        for dpi in (120, 100, 80, 60):
            figure.savefig(path, dpi=dpi, bbox_inches="tight")
            with Image.open(path) as image:
                image.convert("RGB").quantize(200).save(path, optimize=True)
            if path.stat().st_size < LARGEST_FIGURE:
                break
        pyplot.close(figure)
        self.content["parts"].append({"kind": "figure", "file": path.name, "caption": caption})

    def save(self) -> None:
        """Write everything that the page of results is made from."""
        other = self._clock.read()
        for fits in self._fits:
            other -= fits.spent
        self.content["other"] = other._asdict()
        self.content["fits"] = {
            name: taken._asdict() for fits in self._fits for name, taken in fits.taken.items()
        }
        now = about()
        machine = f"{now['processor'].replace('(R)', '')}, {now['cores']} of its cores"
        self.content["made"] = {"commit": now["commit"], "date": now["date"][:10], "machine": machine}
        path = self.options.results / f"{self.name}.json"
        path.write_text(json.dumps(self.content, indent=1) + "\n")


def _number(value: Any) -> Any:
    """Numbers in few digits: a difference in the last bits is no difference."""
    if not isinstance(value, float):
        return value
    return f"{value:.6g}" if abs(value) < 1e5 else f"{value:.2f}"
