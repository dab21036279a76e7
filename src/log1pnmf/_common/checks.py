"""Messages to users, and checks of what they pass: warnings, progress, errors; random states.

All errors have one form: what the argument must be, and what was given.
"""

from __future__ import annotations

import difflib
import inspect
import math
import os
import platform
import re
import sys
import time
import warnings
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from numbers import Integral, Real
from types import ModuleType
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

# ---------- numbers with their nouns


def plural(number: float, one: str, many: str | None = None) -> str:
    """Describe how many, with the noun in the right form.

    >>> plural(1, "sample"), plural(1937, "sample"), plural(0, "entry", "entries")
    ('1 sample', '1,937 samples', '0 entries')
    """
    return f"{round(number):,} {one if number == 1 else many or one + 's'}"


def joined(words: Sequence[str], most: int | None = None) -> str:
    """Join words with commas and "and"; those beyond `most` are counted."""
    shown = list(words[:most])
    if len(words) > len(shown):
        shown.append(f"{len(words) - len(shown)} more")
    if len(shown) <= 1:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


# ---------- warnings that point at the user's line

PASSED_OVER = ("log1pnmf", "sklearn")  # packages whose lines are not the user's


def convergence_warning() -> type[Warning]:
    """Return scikit-learn's warning about fits that have not converged. Loading it takes a second or more."""
    from sklearn.exceptions import ConvergenceWarning

    return ConvergenceWarning


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the innermost line outside of this package and of scikit-learn."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in PASSED_OVER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


@contextmanager
def quiet(category: type[Warning] = Warning) -> Iterator[None]:
    """Ignore warnings of a kind, such as those that were shown before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category)
        yield


# ---------- the one progress display of fits, selections and passes over chunks

MOST_LISTED = 20  # choices that an error names
PATIENCE = 3.0  # seconds that work may take before progress is shown without being asked for
LOG_EVERY = 30.0  # seconds between the lines of a log file


def is_live() -> bool:
    """Whether a progress bar can move: in a terminal and in a notebook, not in a log file."""
    if os.environ.get("TQDM_DISABLE"):  # as all bars of tqdm
        return False
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def shown_after(verbose: int | None) -> float | None:
    """Return after how many seconds progress is shown; None: not at all.

    By default (None) where a bar can move or a log is written, and only if the work takes long.
    """
    if verbose is None:
        return PATIENCE if is_live() or Progress.next_line is not None else None
    return 0.0 if verbose else None


@contextmanager
def logged() -> Iterator[None]:
    """Write a line about the work every 30 s where no bar can move: for the shell, not for scripts."""
    Progress.next_line = time.perf_counter() + LOG_EVERY
    try:
        yield
    finally:
        Progress.next_line = None


class Progress:
    """A bar on standard error, as a context manager; a log file gets lines instead.

    `after`: seconds until it is shown; with 0 (it was asked for) a log file gets a line at the end as well.
    """

    next_line: ClassVar[float | None] = None  # when the next line of a log is due, for all work together

    def __init__(
        self, label: str, unit: str, total: int | None = None, *, leave: bool = True, after: float = 0.0
    ) -> None:
        with quiet():  # a notebook without widgets gets a bar of text
            from tqdm.auto import tqdm
        self._label, self._unit, self._closing = label, unit, leave and after == 0.0
        self._doing = label
        self._started, self._done, self._state = time.perf_counter(), "0", ""
        how = {"leave": leave, "disable": not is_live(), "delay": after}
        self._bar = tqdm(total=total, desc=label, unit=f" {unit}s", **how)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
        if self._closing and not is_live():
            seconds = time.perf_counter() - self._started
            text = f"{self._label}: {self._done} {self._unit}s in {seconds:.1f} s{self._state}"
            sys.stderr.write(f"{text}\n")

    def describe(self, label: str) -> None:
        """Show another text in front of the bar."""
        self._doing = label
        self._bar.set_description_str(label, refresh=False)

    def show(self, done: int, of_all: int | None = None, *, state: str = "") -> None:
        """Show how much is done, with a short text after the bar."""
        self._done = str(done) if of_all is None else f"{done} of {of_all}"
        self._state = f", {state}" if state else ""
        if of_all is not None:
            self._bar.total = of_all
        self._bar.set_postfix_str(state, refresh=False)
        self._bar.update(done - self._bar.n)
        now = time.perf_counter()
        if Progress.next_line is not None and now >= Progress.next_line and not is_live():
            sys.stderr.write(f"{self._doing}: {self._unit} {self._done}{self._state}\n")
            Progress.next_line = now + LOG_EVERY


OnStep: TypeAlias = Callable[[int, int], object]  # called with the number of steps that are done, and of all


def unseen(done: int, of_all: int) -> None:
    """Show no progress."""


@contextmanager
def shown(
    verbose: int | None, label: str, unit: str = "fit", on_step: OnStep | None = None
) -> Iterator[OnStep]:
    """Return what to call after every step: the user's function, a progress bar, or one that does nothing."""
    after = shown_after(verbose)
    if on_step is not None or after is None:
        yield on_step or unseen
        return
    with Progress(label, unit, after=after) as bar:
        yield bar.show


class Passes:
    """A bar for each pass over the chunks that disappears when the pass is done; called after each chunk."""

    def __init__(self, after: float = 0.0) -> None:
        self._number, self._after = 0, after
        self._bar = Progress("pass", "chunk", leave=False, after=after)

    def __call__(self, done: int, of_all: int) -> None:
        if done == 1:
            self._number += 1
            self._bar = Progress(f"pass {self._number}", "chunk", leave=False, after=self._after)
        self._bar.show(done, of_all)
        if done == of_all:
            self._bar.__exit__()


# ---------- optional packages: imported when they are used, named in the error when they are missing


def require(module: str, *, purpose: str, package: str = "") -> ModuleType:
    """Import an optional package."""
    try:
        return import_module(module)
    except ImportError as error:
        package = package or module.partition(".")[0]
        raise ImportError(f"{purpose} needs {package}: pip install {package} ({error})") from error


# ---------- docstrings of functions that share parameters


def extend(run: Callable[..., Any], more: Mapping[str, Any], shared: str, after: str = "") -> None:
    """Show the parameters `more`, with their defaults, in place of ``**``, and describe all parameters.

    `shared` describes the parameters that the docstring leaves out; `after` follows them.
    """

    def entries(text: str) -> dict[str, str]:
        parts = re.split(r"\n(?=\S)", text.strip())
        return {name.strip("* "): part for part in parts for name in re.split(" : |\n", part)[0].split(",")}

    signature = inspect.signature(run)
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        *(one for one in signature.parameters.values() if not more or one.kind is not one.VAR_KEYWORD),
        *(inspect.Parameter(one, kind, default=more[one]) for one in more),
    ]
    parameters.sort(key=lambda one: one.kind)
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    title = "Parameters\n----------\n"
    before, _, own = inspect.cleandoc(run.__doc__ or "").partition(title)
    own, _, later = own.partition("\n\n")
    known = entries(shared) | entries(own)
    names = (*(one.name for one in parameters), *entries(own))
    texts = dict.fromkeys(known[name] for name in names if known.get(name))
    run.__doc__ = f"{before.rstrip()}\n\n{title}{chr(10).join(texts)}\n\n{after}{later}"


# ---------- checks of arguments. All errors have one form


def check_choice(name: str, value: object, choices: Collection[str], *, otherwise: str = "") -> None:
    """Refuse what is not one of the choices; `otherwise` names what else may be given."""
    if isinstance(value, str) and value in choices:
        return
    near = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    also = f" or {otherwise}" if otherwise else ""
    more = f" and {len(choices) - MOST_LISTED} others" if len(choices) > MOST_LISTED else ""
    known = ", ".join(map(repr, list(choices)[:MOST_LISTED]))
    raise ValueError(f"{name} must be one of {known}{more}{also}, got {value!r}{hint}")


def is_missing(label: object) -> bool:
    """Whether it is None, NaN or pandas' NA: only these do not surely equal themselves."""
    same = label == label  # noqa: PLR0124
    return label is None or not isinstance(same, bool | np.bool_) or not same


def check_absent(parameters: Container[str], names: Sequence[str], of: str) -> None:
    """Refuse parameters of single fits where several are made."""
    for name in names:
        if name in parameters:
            raise TypeError(f"{name} is not an option of {of}; leave it out")


def check_whole(name: str, value: object, *, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if cast(int, value) < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_number(name: str, value: object, *, finite: bool = True) -> None:
    """Refuse what is not a finite number >= 0; inf may be allowed."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0.0 <= float(value) <= math.inf or (finite and math.isinf(value)):
        raise ValueError(f"{name} must be {'finite and ' if finite else ''}not negative, got {value}")


def check_one_each(name: str, values: Any, n: int, what: str = "label") -> None:
    """Refuse what is not one value for each of `n` samples."""
    shape = np.shape(values)
    if shape != (n,):
        got = repr(values) if isinstance(values, str) else shape[0] if len(shape) == 1 else f"shape {shape}"
        raise ValueError(f"{name} must have one {what} for each of the {n} samples, got {got}")


def check_not_negative(name: str, table: NDArray[np.float64], unknown: Any = False) -> None:
    """Refuse a table with entries that are negative or not finite, apart from those that are `unknown`."""
    bad = ~(np.isfinite(table) & (table >= 0.0) | unknown)
    if bad.any():
        i, k = (int(at) for at in np.argwhere(bad)[0])
        raise ValueError(f"{name} must be finite and not negative, got {table[i, k]} at row {i}, column {k}")


def one_for_each(name: str, given: Any, length: int, *, of: str = "features") -> NDArray[np.float64]:
    """Return finite numbers >= 0, one for each of `length` features: an array of them, or one number for all.

    >>> one_for_each("dispersion", 0.5, 3).tolist()
    [0.5, 0.5, 0.5]
    >>> one_for_each("dispersion", [0.5, -1.0], 2)
    Traceback (most recent call last):
    ValueError: dispersion must be finite and not negative, got -1.0 at position 1
    """
    try:
        values = np.array(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{name} must be numbers, one for each of the {length} {of}, got {given!r}"
        ) from error
    if values.shape not in ((), (length,)):
        raise ValueError(
            f"{name} must be a number, or one for each of the {length} {of}; got shape {values.shape}"
        )
    values = np.broadcast_to(values, (length,)).copy()
    bad = ~(np.isfinite(values) & (values >= 0.0))
    if bad.any():
        where = int(np.argmax(bad))
        raise ValueError(f"{name} must be finite and not negative, got {values[where]} at position {where}")
    return values


# ---------- random generators, and their state as plain values, from which they can be restored

Random: TypeAlias = np.random.Generator | np.random.RandomState
Seed: TypeAlias = int | Random | None

GENERATORS = {name: getattr(np.random, name) for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")}


def as_random(random_state: Any) -> Random:
    """Take an `np.random.Generator` as it is, anything else as scikit-learn does."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    try:
        if isinstance(random_state, Integral):
            return np.random.RandomState(int(random_state))
        from sklearn.utils import check_random_state  # the usual call does without

        return check_random_state(random_state)
    except ValueError:
        raise ValueError(
            "random_state must be None, a whole number from 0 to 2**32 - 1, a RandomState or a Generator, "
            f"got {random_state!r}"
        ) from None


def new_seed(rng: Random) -> int:
    """Draw a whole number that can seed another generator."""
    most = np.iinfo(np.int32).max
    return int(rng.integers(most) if isinstance(rng, np.random.Generator) else rng.randint(most))


def random_parts(rng: Random) -> dict[str, Any]:
    """State of a generator of random numbers, as JSON holds it."""
    state = rng.bit_generator.state if isinstance(rng, np.random.Generator) else rng.get_state(legacy=False)
    return {"type": type(rng).__name__, "state": _listed(state)}


def check_known(rng: Random) -> None:
    """Refuse generators that `random_from_parts` cannot restore."""
    name = random_parts(rng)["state"]["bit_generator"]
    if name not in GENERATORS:
        raise ValueError(f"random_state must use one of {', '.join(GENERATORS)} for a checkpoint, got {name}")


def random_from_parts(parts: Mapping[str, Any]) -> Random:
    """Restore a generator from the state that `random_parts` gave."""
    state = parts["state"]
    inner = state["state"] if isinstance(state["state"], dict) else {}
    positions = (("pos", inner.get("pos", 0), 624), ("buffer_pos", state.get("buffer_pos", 0), 4))
    for name, place, most in positions:  # in the memory of the generator; NumPy does not check them
        if not isinstance(place, int) or not 0 <= place <= most:
            raise ValueError(f"{name} of the random numbers must be from 0 to {most}, got {place!r}")
    bits = GENERATORS[state["bit_generator"]]()
    if parts["type"] == "Generator":
        bits.state = state
        return np.random.Generator(bits)
    rng = np.random.RandomState(bits)
    rng.set_state(state)
    return rng


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(one) for key, one in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


# ---------- the version of the package

try:
    __version__ = version("log1pnmf")
except PackageNotFoundError:  # sources on a path, not installed
    __version__ = "0.0.0+unknown"


def versions() -> dict[str, str]:
    """Return what the numbers of a fit were computed with."""
    packages = {name: version(name) for name in ("numpy", "scipy", "scikit-learn")}
    return {"log1pnmf": __version__, "python": platform.python_version(), **packages}
