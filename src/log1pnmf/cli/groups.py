"""Options that belong together: fields of a dataclass, which commands take as one parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

from log1pnmf.fitting.request import Request
from log1pnmf.fitting.settings import Settings

from . import options as common

__all__ = ["FitOptions", "SolverOptions", "unfolded"]

LIBRARY_NAMES = {"seed": "random_state", "jobs": "n_jobs"}
"""Options that go by other names in the library."""


@dataclass(frozen=True)
class SolverOptions:
    """Options of every command that fits models."""

    likelihood: common.Likelihood = Settings.likelihood
    size_factors: common.SizeFactors = Settings.size_factors
    batch_strength: common.BatchStrength = Settings.batch_strength
    l1: common.L1 = Settings.l1
    seed: common.Seed = 0
    max_iter: common.MaxIter = Settings.max_iter
    tol: common.Tol = Settings.tol
    jobs: common.Jobs = Request.n_jobs

    def parameters(self, n_components: int, **more: Any) -> dict[str, Any]:
        """Give checked parameters of a fit, by their names in the library."""
        own = {LIBRARY_NAMES.get(one.name, one.name): getattr(self, one.name) for one in fields(self)}
        return common.checked_parameters(n_components=n_components, **own, **more)


@dataclass(frozen=True)
class FitOptions(SolverOptions):
    """Options of commands that fit one model for every c."""

    zeros_tol: common.ZerosTol = Settings.zeros_tol
    noise: common.Noise = Settings.noise
    dispersion: common.Dispersion = Settings.dispersion
    init: common.Init = Settings.init
    n_init: common.NInit = Settings.n_init


def unfolded(command: Callable[..., int]) -> Callable[..., int]:
    """Show the fields of parameters that are dataclasses as options, and put them together for the command.

    Examples
    --------
    >>> @dataclass
    ... class Size:
    ...     width: int = 1
    ...     height: int = 2
    >>> def area(*, size: Size, times: int = 1) -> int:
    ...     return times * size.width * size.height
    >>> area.__annotations__ = {"size": Size, "times": int}
    >>> signature(unfolded(area))
    <Signature (*, width: int = 1, height: int = 2, times: int = 1) -> int>
    >>> unfolded(area)(width=3, height=4, times=1)
    12
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    shown: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        kind = hints[parameter.name]
        if not is_dataclass(kind):
            shown.append(parameter.replace(annotation=kind))
            continue
        groups[parameter.name], own = kind, get_type_hints(kind, include_extras=True)
        shown += [
            Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=own[one.name])
            for one in fields(kind)
        ]

    @wraps(command)
    def run(**given: Any) -> int:
        for name, kind in groups.items():
            given[name] = kind(**{one.name: given.pop(one.name) for one in fields(kind)})
        return command(**given)

    run.__signature__ = Signature(shown, return_annotation=int)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in shown}
    return run
