"""The estimator as arrays and plain values, and back; what comes back from a file is checked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from log1pnmf._common.archive import check_numbers, check_value
from log1pnmf.fitting.certificate import Certificate
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.readout import Readout
from log1pnmf.fitting.summary import TrainingData

__all__ = ["ModelParts", "pack_parameters", "unpack_parameters"]

PARAMETER = "parameter."
NOT_SAVED = ("callbacks", "n_jobs", "engine", "verbose", "checkpoint", "checkpoint_every")
"""What belongs to the machine and to the user who fits: a file decides nothing about it."""

MOST_COMPONENTS = 10_000
"""Factors that a file may ask the next fit for, beyond those it has."""


@dataclass(frozen=True, eq=False)
class ModelParts:
    """A fitted model, taken apart.

    Parameters
    ----------
    parameters : dict
        Of the estimator, without those that are not saved.
    fit : Fit
    readout : Readout
    data : TrainingData
    certificate : Certificate or None
    feature_names : ndarray of str, or None
    """

    parameters: Mapping[str, Any]
    fit: Fit
    readout: Readout
    data: TrainingData
    certificate: Certificate | None
    feature_names: np.ndarray | None

    def to_archive(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Give arrays and metadata for `log1pnmf._common.archive.write_archive`."""
        arrays, metadata = self.fit.to_parts()
        given, values = pack_parameters(self.parameters)
        arrays |= {**given, "readout.order": self.readout.order, "readout.scale": self.readout.scale}
        if self.feature_names is not None:
            arrays["feature_names"] = self.feature_names.astype(np.str_)
        own = {
            "parameters": values,
            "data": asdict(self.data),
            "certificate": None if self.certificate is None else asdict(self.certificate),
        }
        return arrays, {**metadata, "estimator": own}

    @classmethod
    def from_archive(cls, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> ModelParts:
        """Put together and check what `to_archive` gave.

        Parameters
        ----------
        arrays : dict of str to ndarray
        metadata : dict

        Returns
        -------
        ModelParts
        """
        own = metadata["estimator"]
        certificate = own["certificate"]
        names = arrays.get("feature_names")
        if names is not None and names.dtype.kind != "U":
            raise ValueError(f"feature_names must be text, got {names.dtype}")
        parts = cls(
            unpack_parameters(arrays, own["parameters"]),
            Fit.from_parts(arrays, metadata),
            Readout(arrays["readout.order"], arrays["readout.scale"]),
            TrainingData(**own["data"]),
            None if certificate is None else Certificate(**certificate),
            None if names is None else names.astype(object),
        )
        parts.check()
        if parts.data.n_samples != len(parts.fit.loadings):
            raise ValueError(f"data.n_samples is {parts.data.n_samples}, but there are other loadings")
        return parts

    def check(self) -> None:
        """Refuse parts that do not belong together; the fit is checked when it is made."""
        m, k = self.fit.factors.shape
        order = self.readout.order
        if order.dtype.kind not in "iu" or order.ndim != 1 or sorted(order.tolist()) != list(range(k)):
            raise ValueError(f"readout.order must hold each of the {k} factors once")
        check_numbers("readout.scale", self.readout.scale, (k,), positive=True)
        for name in ("n_samples", "n_features", "nnz"):
            check_value(f"data.{name}", getattr(self.data, name), int)
        check_value("data.total", self.data.total, float)
        if self.data.n_features != m or self.data.n_samples < 1 or not 0.0 < self.data.total < np.inf:
            raise ValueError(f"data must have {m} features, samples and counts, got {self.data}")
        if self.certificate is not None:
            for name, kind in (("log_likelihood", float), ("standard_error", float)):
                check_value(f"certificate.{name}", getattr(self.certificate, name), kind)
            if self.certificate.approximate_log_likelihood is not None:
                check_value("approximate", self.certificate.approximate_log_likelihood, float)
            for name in ("n_sampled", "n_samples"):
                check_value(f"certificate.{name}", getattr(self.certificate, name), int)
        if self.feature_names is not None and self.feature_names.shape != (m,):
            raise ValueError(f"feature_names must be {m}, got shape {self.feature_names.shape}")
        asked = self.parameters.get("n_components", 1)
        if isinstance(asked, int) and asked > max(MOST_COMPONENTS, k):
            raise ValueError(f"n_components is {asked:,}")

    @property
    def features(self) -> dict[str, Any]:
        """What scikit-learn wants to know of the features, as attributes."""
        named = {} if self.feature_names is None else {"feature_names_in_": self.feature_names}
        return {"n_features_in_": self.data.n_features, **named}


def pack_parameters(parameters: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Take apart what can be saved: numbers, strings, arrays and tuples of numbers or of arrays.

    Left out are random states that are not a number, and what belongs to the machine and the user: threads,
    engine, progress bar, checkpoints and callbacks.

    Parameters
    ----------
    parameters : dict

    Returns
    -------
    arrays : dict of str to ndarray
    values : dict
        Numbers, strings, None, and lists of numbers.
    """
    arrays: dict[str, np.ndarray] = {}
    values: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in NOT_SAVED:
            continue
        if value is None or isinstance(value, str | bool | int | float | np.generic):
            values[name] = value.item() if isinstance(value, np.generic) else value
        elif name == "interval":
            values[name] = [float(end) for end in value]
        elif name == "init":
            for part, array in zip(("loadings", "factors"), value, strict=True):
                arrays[f"{PARAMETER}init.{part}"] = np.asarray(array, dtype=np.float64)
        elif name == "size_factors":
            arrays[f"{PARAMETER}size_factors"] = np.asarray(value, dtype=np.float64)
    return arrays, values


def unpack_parameters(arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> dict[str, Any]:
    """Put together what `pack_parameters` took apart; what it leaves out is left out here too.

    Parameters
    ----------
    arrays : dict of str to ndarray
        Others among them are left alone.
    values : dict

    Returns
    -------
    dict
    """
    parameters = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name not in NOT_SAVED
    }
    if any(f"{PARAMETER}init.{part}" in arrays for part in ("loadings", "factors")):
        parameters["init"] = tuple(arrays[f"{PARAMETER}init.{part}"] for part in ("loadings", "factors"))
    if f"{PARAMETER}size_factors" in arrays:
        parameters["size_factors"] = arrays[f"{PARAMETER}size_factors"]
    return parameters
