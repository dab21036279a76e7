"""A fit inside an AnnData object, and back: plain numbers, text and arrays; anndata is not needed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.archive import check_value, making_whole, to_tree
from log1pnmf._common.checks import versions
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.features import find_features, match_names, own_symbols

from .fit import Certificate, Fit, Keys, usual_factor_names
from .new_samples import counts_of
from .settings import Settings

TEXT = "OTU"  # kinds of arrays as which text comes back, from memory, zarr and h5ad
# parts of a fit that are in `obsm`, `varm` and `var`; factors always have names here
ELSEWHERE = ("loadings", "factors", "dispersion", "mask", "given_factor_names")


def is_annotated(source: object) -> bool:
    """Whether something has the slots of an AnnData object."""
    return all(hasattr(source, slot) for slot in ("obsm", "varm", "uns"))


def advice_for(source: object) -> str | None:
    """Return what to pass instead of MuData or ``adata.raw``; None for anything else."""
    if hasattr(source, "mod"):
        return f"pass one of its modalities, such as mdata[{next(iter(source.mod), 'rna')!r}]"
    if type(source).__name__ == "Raw":
        return "pass adata itself, with layer='raw' where a tool takes counts"
    return None


def column_of(adata: Any, where: str, name: str, argument: str) -> Any:
    """Return the column of ``adata.obs`` or ``adata.var`` that an argument names."""
    table = getattr(adata, where)
    if name not in table:
        known = ", ".join(map(repr, list(table.columns)[:20])) or "none"
        raise KeyError(f"{argument}: adata.{where} has no column {name!r}; it has: {known}")
    return table[name]


def symbols_of(source: Any, gene_symbols: str | None, feature_names: Any = None) -> Any:
    """Return the names of features that a column of ``adata.var`` holds; otherwise those that were given."""
    if gene_symbols is None:
        return feature_names
    if feature_names is not None:
        raise ValueError("gene_symbols and feature_names both name the features; pass one of them")
    if not is_annotated(source):
        raise ValueError(
            f"gene_symbols={gene_symbols!r} names a column of adata.var, but the source is a "
            f"{type(source).__name__}; pass feature_names, one for each feature"
        )
    symbols = column_of(source, "var", gene_symbols, "gene_symbols").astype(str).to_numpy(dtype=np.str_)
    return own_symbols(symbols, source.var_names).tolist()


def uns_of(fit: Fit, layer: str | None) -> dict[str, Any]:
    """Everything of a fit but loadings and factors, as `uns` holds it."""
    own = {name: value for name, value in to_tree(fit).items() if name not in ELSEWHERE}
    return _storable(
        {
            **own,
            "factor_names": fit.factor_names,
            "c": fit.c,
            "n_components": fit.n_components,
            "log_likelihood": fit.log_likelihood,
            "converged": fit.converged,
            "layer": "X" if layer is None else layer,
            "loadings_digest": _digest(fit.loadings),
            "versions": versions(),
        }
    )


def fit_from(adata: Any, key: str | None = None, *, any_samples: bool = False) -> Fit:
    """Put a fit together from what `log1pnmf.tl.log1p_nmf` wrote."""
    keys = Keys(key)
    about = _about(adata, keys)
    where = f"adata.uns[{keys.uns!r}] holds a fit"
    with making_whole(where, "fit again"):
        loadings = np.array(adata.obsm[keys.obsm], dtype=np.float64)
        factors = np.array(adata.varm[keys.varm], dtype=np.float64)
        sizes = np.asarray(about["size_factors"])
        rows, missing = fitted_samples(adata, about, loadings)
        named = np.asarray(about["feature_names"], dtype=object)
        if named.ndim != 1 or not len(named) or not all(isinstance(name, str) for name in named):
            raise ValueError("feature_names must be text")
        check_value("layer", about["layer"], str)
    if missing and not any_samples:
        raise ValueError(
            f"{len(missing):,} of the {len(loadings):,} samples of adata are not in the fit by name, or "
            f"occur there twice (first {missing[0]!r}); give adata.obs_names the names they had, or estimate "
            "loadings for these samples with log1pnmf.tl.transform"
        )
    places = find_features(adata.var_names, named.tolist(), fitted_here=True)
    factors = factors[places]
    with making_whole(where, "fit again"):
        in_order = len(rows) == len(sizes) and _digest(loadings[np.argsort(rows)])
        unchanged = in_order == about["loadings_digest"]
        tree = _tree(about)
        was_whole = tree["whole"]
        if tree["batches"] is not None:
            tree["batches"]["labels"] = tree["batches"]["labels"][rows]
        tree |= {"loadings": loadings, "factors": factors, "size_factors": sizes[rows], "sample_names": None}
        names = _text(np.asarray(about.get("factor_names", []), dtype=object))
        usual = names.ndim != 1 or names.tolist() == usual_factor_names(len(names))
        tree |= {"whole": was_whole and unchanged, "given_factor_names": None if usual else names}
        if keys.dispersion in adata.var:
            tree["dispersion"] = np.asarray(adata.var[keys.dispersion], dtype=np.float64)[places]
        if tree["factor_kinds"] is not None and keys.mask in adata.varm:
            tree["mask"] = np.asarray(adata.varm[keys.mask], dtype=bool)[places]
        fit = Fit.from_parts({}, tree)
    if was_whole and not unchanged:
        why = f"these are {len(rows):,} of the {len(sizes):,} samples of the fit, or loadings have changed"
        fit = fit.of_samples(fit.loadings, fit.size_factors, fit.batches, why)
    return fit.named(sample_names=adata.obs_names)


def fitted_samples(
    adata: Any, about: Mapping[str, Any], loadings: NDArray[np.float64]
) -> tuple[NDArray[np.intp], list[str]]:
    """Return which samples of the fit those of `adata` are, and names of those that are not in it."""
    if _digest(loadings) == about["loadings_digest"]:
        return np.arange(len(loadings)), []
    rows, missing, twice = match_names(_text(np.asarray(about["sample_names"])).tolist(), adata.obs_names)
    return rows, missing + twice


def stored(adata: Any, slot: str, key: str) -> Any:
    """Return a part of a fit in one of the slots of an AnnData object."""
    if (advice := advice_for(adata)) is not None:
        raise TypeError(f"adata must be an AnnData object, got {type(adata).__name__}; {advice}")
    if not adata.n_obs:
        raise ValueError("adata has no samples: none was chosen when it was cut")
    there = getattr(adata, slot)
    if key not in there:
        known = ", ".join(map(repr, there)) or "none"
        raise KeyError(
            f"adata.{slot} has no {key!r} (it has: {known}); "
            "run log1pnmf.tl.log1p_nmf first, or pass the key it wrote to (anndata.concat drops uns and "
            "varm: log1pnmf.tl.transform with the object that was fitted puts them back)"
        )
    return there[key]


def _about(adata: Any, keys: Keys) -> Mapping[str, Any]:
    about, *_ = (stored(adata, slot, getattr(keys, slot)) for slot in ("uns", "obsm", "varm"))
    if not isinstance(about, Mapping) or "loadings_digest" not in about:
        raise ValueError(
            f"adata.uns[{keys.uns!r}] is no fit as log1pnmf.tl writes it; fit again, or, if objects with and "
            "without their own fit were concatenated, use log1pnmf.tl.transform with the one that was fitted"
        )
    if hasattr(about.get("size_factors"), "compute"):
        raise ValueError("adata was read lazily, with its fit still in the file; pass adata.to_memory()")
    return about


def _tree(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `uns_of` stored in Python's own types; files have no place for None, so it is put back."""

    def filled(kind: type, own: Mapping[str, Any]) -> dict[str, Any]:
        return {field.name: own.get(field.name) for field in fields(kind) if field.init}

    tree = filled(Fit, _plain(about))
    kinds = {"settings": Settings, "asked": Settings, "certificate": Certificate}
    return tree | {name: filled(kind, tree[name]) for name, kind in kinds.items() if tree[name] is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray):
        return _text(value)
    return value.item() if isinstance(value, np.generic) else value


def _text(column: np.ndarray) -> np.ndarray:
    return np.array(column.tolist(), dtype=np.str_) if column.dtype.kind in TEXT else column


def _storable(value: Any) -> Any:
    """Return values as anndata stores them: nothing for None, arrays for lists, objects for text."""
    if isinstance(value, Mapping):
        return {name: _storable(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        text = not value or isinstance(value[0], str)
        return np.array(value, dtype=object if text else np.float64)
    return value.astype(object) if isinstance(value, np.ndarray) and value.dtype.kind == "U" else value


def _digest(loadings: NDArray[np.float64]) -> str:
    return hashlib.sha256(np.ascontiguousarray(loadings, dtype=np.float64).tobytes()).hexdigest()


# ---------- a Fit from whatever holds one


def as_fit(source: Any, *, key: str | None = None, gene_symbols: str | None = None) -> Fit:
    """Get the `Fit` from a model, AnnData or a file.

    Parameters
    ----------
    source : Fit, Log1pNMF, Pipeline, AnnData, str or PathLike
        A fit, a fitted estimator, AnnData with a fit by `log1pnmf.tl.log1p_nmf`, or a file that `save` wrote.
        The features of a Pipeline that ends with a `Log1pNMF` have the names that the steps before it give
        them, such as the words of a CountVectorizer. Samples of AnnData may be some of those that were
        fitted, in any order; see `Fit.whole`.
    key : str, optional
        Name of the fit in AnnData, if ``key_added`` was given.
    gene_symbols : str, optional
        Column of ``adata.var`` that names the features of the fit; a feature without a symbol of its own
        keeps its name in ``var_names``.

    Examples
    --------
    >>> from log1pnmf import Log1pNMF
    >>> model = Log1pNMF(1).fit([[4, 2], [2, 1], [6, 3]])
    >>> as_fit(model).loadings.max()
    np.float64(1.0)
    """
    if key is not None and not is_annotated(source):
        raise ValueError(f"key={key!r} is for AnnData, got {type(source).__name__}; leave it out")
    symbols = symbols_of(source, gene_symbols)
    if isinstance(source, Fit):
        return source
    if isinstance(source, str | os.PathLike):
        if os.fspath(source).endswith((".h5ad", ".zarr")):
            raise ValueError(
                f"{os.fspath(source)} is a file of AnnData; read it first, and pass the object: "
                "anndata.read_h5ad(path) or anndata.read_zarr(path)"
            )
        return Fit.load(source)
    if is_annotated(source):
        fit = fit_from(source, key)
        names = dict(zip(source.var_names, symbols or source.var_names, strict=True))
        return fit if symbols is None else fit.named(feature_names=[names[j] for j in fit.feature_labels])
    if hasattr(source, "get_params") and hasattr(source, "fit"):
        from sklearn.utils.validation import check_is_fitted  # loaded with the estimator

        check_is_fitted(source)
    model = source[-1] if hasattr(source, "named_steps") else source
    found = getattr(model, "fit_", None)
    if not isinstance(found, Fit):
        raise TypeError(
            "expected a Fit, a fitted Log1pNMF, an AnnData or a file with a fit, got "
            f"{type(model).__name__}; {advice_for(source) or 'fit one first'}"
        )
    if model is source or found.feature_names is not None:
        return found
    try:
        return found.named(feature_names=source[:-1].get_feature_names_out())
    except (AttributeError, ValueError):  # a step gives no names, or needs those of the counts
        return found


def fit_and_counts(source: Any, counts: Any, *, key: str | None = None) -> tuple[Fit, Counts]:
    """Return the fit that something holds, and the counts of its samples with features in its order."""
    fit = as_fit(source, key=key)
    return fit, counts_of(fit, counts)
