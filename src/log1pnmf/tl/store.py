"""A fitted model inside an AnnData object, in plain types, and back."""

from __future__ import annotations

import hashlib
import platform
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import scipy
import sklearn
from numpy.typing import NDArray

from log1pnmf._common.archive import check_value, making_whole
from log1pnmf._common.optional import require
from log1pnmf._common.version import __version__
from log1pnmf.counts.features import find_features
from log1pnmf.estimator import Log1pNMF
from log1pnmf.fitting.facts import Certificate
from log1pnmf.fitting.fit import NUMBERS, Fit, check_fit
from log1pnmf.fitting.keys import Keys
from log1pnmf.fitting.readout import Readout
from log1pnmf.fitting.summary import TrainingData
from log1pnmf.saving import ModelParts, pack_parameters, unpack_parameters

from .inputs import Selection

__all__ = ["read_model", "write_loadings", "write_model"]

Array = NDArray[np.float64]

TEXT = "OTU"
"""Kinds of arrays as which text comes back, from memory, zarr and h5ad."""


# ---------------------------------------------------------------- writing


def write_model(adata: Any, keys: Keys, model: Log1pNMF, selection: Selection) -> None:
    """Write a fitted model; features that were left out have zero factors.

    Parameters
    ----------
    adata : AnnData
    keys : Keys
    model : Log1pNMF
    selection : Selection
        What it was fitted to.
    """
    factors = np.zeros((adata.n_vars, len(model.components_)))
    factors[selection.positions] = model.components_.T
    write_loadings(adata, keys, model.loadings_)
    adata.varm[keys.varm] = factors
    adata.uns[keys.uns] = _without_none(_about(model, selection))


def write_loadings(adata: Any, keys: Keys, loadings: Array) -> None:
    """Write loadings; a view becomes an object of its own."""
    anndata = require("anndata", extra="anndata", purpose="log1pnmf.tl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", anndata.ImplicitModificationWarning)
        adata.obsm[keys.obsm] = loadings.copy()


def _about(model: Log1pNMF, selection: Selection) -> dict[str, Any]:
    """Everything but loadings and factors."""
    fit = model.fit_
    given, values = pack_parameters(model.get_params(deep=False))
    return {
        **{name: getattr(fit, name) for name in NUMBERS},
        "n_components": fit.n_components,
        "layer": "X" if selection.layer is None else selection.layer,
        "settings": {
            name: np.array(value) if isinstance(value, tuple) else value
            for name, value in fit.settings.items()
        },
        "parameters": {
            **{name.rpartition("parameter.")[2]: array for name, array in given.items()},
            **{name: np.array(value) if isinstance(value, list) else value for name, value in values.items()},
        },
        "history": {name: _storable(column) for name, column in fit.history.items()},
        "messages": np.array(fit.messages, dtype=object),
        "size_factors": fit.size_factors,
        "feature_names": np.asarray(selection.counts.feature_names),
        "data": asdict(model._data),
        "certificate": None if model.certificate_ is None else asdict(model.certificate_),
        "readout": {"order": model._readout.order, "scale": model._readout.scale},
        "loadings_digest": _digest(model.loadings_),
        "versions": {
            "log1pnmf": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "scikit-learn": sklearn.__version__,
        },
    }


def _storable(column: np.ndarray) -> np.ndarray:
    """Text as anndata stores it."""
    return column.astype(object) if column.dtype.kind == "U" else column


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is not known: files have no place for None."""
    return {
        name: _without_none(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value is not None
    }


def _digest(loadings: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(loadings, dtype=np.float64).tobytes()).hexdigest()


# ---------------------------------------------------------------- reading


def read_model(adata: Any, keys: Keys, *, whole: bool) -> Log1pNMF:
    """Put a fitted model together from what `write_model` wrote.

    Parameters
    ----------
    adata : AnnData
    keys : Keys
    whole : bool
        Whether its samples have to be those of the fit. Otherwise the model is only good for other samples,
        and its size factors are not to be used.

    Returns
    -------
    Log1pNMF
        Without callbacks; loadings and factors have the same bits as when they were written.
    """
    about = _stored(adata, keys)
    stored = f"adata.uns[{keys.uns!r}] holds a model"
    with making_whole(stored, "fit again"):
        names = np.asarray(about["feature_names"], dtype=object)
        if names.ndim != 1 or not len(names) or not all(isinstance(name, str) for name in names):
            raise ValueError("feature_names must be text")
        check_value("layer", about["layer"], str)
        shown_factors = np.array(adata.varm[keys.varm], dtype=np.float64)
        shown_loadings = np.array(adata.obsm[keys.obsm], dtype=np.float64)
        size_factors = np.asarray(about["size_factors"])
        n_fitted, changed = len(size_factors), _digest(shown_loadings) != about["loadings_digest"]
    if changed and whole:
        raise ValueError(
            f"the {len(shown_loadings):,} samples of adata are not those of the fit "
            f"({n_fitted:,}): some were dropped, added, reordered or changed since; "
            "take the model from the object as it was, or keep it with model.save(path)"
        )
    shown_factors = shown_factors[find_features(adata, names, fitted_here=True)]
    with making_whole(stored, "fit again"):
        readout = Readout(np.asarray(about["readout"]["order"]), np.asarray(about["readout"]["scale"]))
        sizes = np.ones(len(shown_loadings)) if changed else size_factors
        fit = _fit(about, readout, shown_loadings, shown_factors, sizes)
        data = TrainingData(**_plain(about["data"]))
        parameters = _parameters(about["parameters"])
        parts = ModelParts(parameters, fit, readout, data, _certificate(about), names)
        parts.check()
        model = Log1pNMF._of(parts)
    # Back and forth between the fit's scale and the one shown may cost the last bit.
    model.loadings_, model.components_ = shown_loadings, np.ascontiguousarray(shown_factors.T)
    return model


def _stored(adata: Any, keys: Keys) -> Mapping[str, Any]:
    for slot, key in (("uns", keys.uns), ("obsm", keys.obsm), ("varm", keys.varm)):
        if key not in getattr(adata, slot):
            known = ", ".join(map(repr, getattr(adata, slot))) or "none"
            raise KeyError(
                f"adata.{slot} has no {key!r} (it has: {known}); "
                "run log1pnmf.tl.log1p_nmf first, or pass the key it wrote to"
            )
    about = adata.uns[keys.uns]
    if not isinstance(about, Mapping) or "loadings_digest" not in about:
        raise ValueError(f"adata.uns[{keys.uns!r}] was not written by log1pnmf.tl; fit again")
    return about


def _fit(about: Mapping[str, Any], readout: Readout, loadings: Array, factors: Array, sizes: Array) -> Fit:
    back = np.argsort(readout.order)
    settings = _plain(about["settings"])
    settings["interval"] = tuple(settings["interval"].tolist()) if "interval" in settings else None
    numbers: dict[str, Any] = {name: _plain(about).get(name) for name in NUMBERS}
    fit = Fit(
        loadings=(loadings * readout.scale)[:, back],
        factors=(factors / readout.scale)[:, back],
        size_factors=np.asarray(sizes, dtype=np.float64),
        history={
            name: np.array(column.tolist(), dtype=np.str_) if column.dtype.kind in TEXT else column
            for name, column in about["history"].items()
        },
        settings=settings,
        messages=tuple(str(message) for message in about["messages"]),
        **numbers,
    )
    check_fit(fit)
    return fit


def _parameters(stored: Mapping[str, Any]) -> dict[str, Any]:
    values, arrays = _plain(stored), {}
    for name in [name for name, value in values.items() if isinstance(value, np.ndarray)]:
        array = values.pop(name)
        if name == "interval":
            values[name] = array.tolist()
        else:
            arrays[f"parameter.{name}"] = array
    return unpack_parameters(arrays, values)


def _certificate(about: Mapping[str, Any]) -> Certificate | None:
    if "certificate" not in about:
        return None
    return Certificate(**{"approximate_log_likelihood": None, **_plain(about["certificate"])})


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and text as Python's own: a file gives NumPy's."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
