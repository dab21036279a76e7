"""`Request`: the settings of a fit, the arrays and functions a user gave, and how to run it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any, cast

import numpy as np

from log1pnmf._common.atomic import StrPath
from log1pnmf._common.checks import check_choice, check_number, check_whole
from log1pnmf._common.randomness import as_random
from log1pnmf.counts.counts import check_size_factors
from log1pnmf.engines.base import EngineFactory
from log1pnmf.engines.registry import is_factory
from log1pnmf.engines.threads import effective_threads

from .checkpoint import check_checkpoint
from .fit import Fit
from .settings import GIVEN, INITS, Settings
from .solver.callbacks import Callback

__all__ = ["PARAMETERS", "Request", "default_of"]


@dataclass(frozen=True, eq=False)
class Request:
    """A fit that is asked for; make one with `Request.of`.

    Parameters
    ----------
    settings : Settings
        "given" stands for what the next four hold.
    size_factors, dispersion, init, engine : optional
        Arrays; pair of arrays, `Fit` or function; factory of engines.
    batch : array of shape (n,), optional
        Labels of batches.
    fixed_loadings, fixed_factors, mask : optional
        What is known of some factors, see `log1pnmf.fitting.known`.
    n_jobs, callbacks, verbose, checkpoint, checkpoint_every
        How to run the fit; they do not change the result, and are not kept with it.
    """

    settings: Settings
    size_factors: Any = None
    dispersion: Any = None
    init: Any = None
    engine: EngineFactory | None = None
    batch: Any = None
    fixed_loadings: Any = None
    fixed_factors: Any = None
    mask: Any = None
    random_state: Any = 0
    n_jobs: int | None = None
    callbacks: Sequence[Callback] = ()
    verbose: int = 0
    checkpoint: StrPath | None = None
    checkpoint_every: float = 30.0

    def __post_init__(self) -> None:
        if self.settings.n_init > 1 and self.init is not None and not callable(self.init):
            raise ValueError(
                f"n_init must be 1 with a given start, got {self.settings.n_init}: all would be the same"
            )
        as_random(self.random_state)
        effective_threads(self.n_jobs)
        if not isinstance(self.callbacks, Iterable):
            raise TypeError(f"callbacks must be a sequence of callables, got {self.callbacks!r}; pass a list")
        for callback in self.callbacks:
            if not callable(callback):
                raise TypeError(f"callbacks must be callable, got {callback!r}")
        if not isinstance(self.verbose, bool | np.bool_):
            check_whole("verbose", self.verbose, least=0)
        check_number("checkpoint_every", self.checkpoint_every)
        if self.checkpoint is not None:
            check_checkpoint(self.checkpoint)

    @classmethod
    def of(cls, *, batch: Any = None, **parameters: Any) -> Request:
        """Check parameters as a user passes them, and tell settings from what was given beside them.

        Parameters
        ----------
        batch : array of shape (n,), optional
            See `log1pnmf.Log1pNMF.fit`.
        **parameters : optional
            Those of `log1pnmf.Log1pNMF`, but `warm_start`; see there.
        """
        for name in parameters:
            if name not in (*PARAMETERS, *KNOWN):
                check_choice("a parameter of the fit", name, PARAMETERS)
        given: dict[str, Any] = {}
        sizes, init, engine = (parameters.get(name) for name in ("size_factors", "init", "engine"))
        if "size_factors" in parameters:
            check_size_factors(sizes)
            if not isinstance(sizes, str):
                given["size_factors"] = sizes
        dispersion = parameters.get("dispersion", Settings.dispersion)
        if not isinstance(dispersion, str):
            given["dispersion"] = dispersion
        if isinstance(init, str) or ("init" in parameters and init is None):
            check_choice("init", init, INITS, otherwise="(loadings, factors), a Fit or a function")
        elif "init" in parameters:
            given["init"] = init
        if "engine" in parameters and is_factory(engine):
            given["engine"] = engine
        seed = parameters.get("random_state", Settings.random_state)
        values = {name: parameters[name] for name in SETTINGS if name in parameters}
        values |= dict.fromkeys(given, GIVEN)
        whole = isinstance(seed, Integral) and not isinstance(seed, bool | np.bool_)
        values["random_state"] = int(cast(int, seed)) if whole else None
        running = {name: parameters[name] for name in (*KNOWN, *RUNNING) if name in parameters}
        if "callbacks" in running and isinstance(running["callbacks"], Iterable):
            running["callbacks"] = tuple(running["callbacks"])
        return cls(Settings(**values), random_state=seed, batch=batch, **given, **running)

    @classmethod
    def like(cls, fit: Fit) -> Request:
        """Ask once more for what a fit was asked for; an engine or a start of the user's own is forgotten."""
        asked = fit.asked
        forgotten = {
            name: getattr(Settings, name) for name in ("init", "engine") if getattr(asked, name) == GIVEN
        }
        return cls(
            replace(asked.with_noise(fit.settings.noise), **forgotten),
            size_factors=fit.size_factors if asked.size_factors == GIVEN else None,
            dispersion=fit.dispersion if asked.dispersion == GIVEN else None,
            batch=None if fit.batches is None else fit.batches.sample_names,
            **dict(zip(KNOWN, fit.known_parts, strict=True)),
            random_state=asked.random_state,
        )

    def at(self, **changed: Any) -> Request:
        """Give the same request with other settings, or started elsewhere (`init=`)."""
        init = changed.pop("init", None)
        if init is None:
            return replace(self, settings=replace(self.settings, **changed))
        settings = replace(self.settings, **changed, init=GIVEN, n_init=1)
        return replace(self, settings=settings, init=init)


SETTINGS = tuple(field.name for field in fields(Settings))
RUNNING = ("n_jobs", "callbacks", "verbose", "checkpoint", "checkpoint_every")
KNOWN = ("fixed_loadings", "fixed_factors", "mask")
"""What may be known of factors."""
PARAMETERS = (*SETTINGS, *KNOWN[1:], *RUNNING)
"""All parameters of a fit, in the order in which users see them; known loadings go with the counts."""


def default_of(name: str) -> Any:
    """Give the default of a parameter: every face of the package has the same."""
    return getattr(Settings if name in SETTINGS else Request, name)
