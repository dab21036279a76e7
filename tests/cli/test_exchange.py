"""The R package's list: the same numbers there and back."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from scipy.io import mmread

from log1pnmf import fit_log1p_nmf
from log1pnmf.cli.exchange import read_r_list, write_r_list

Y = np.random.default_rng(0).poisson(1.0, size=(12, 9))


def fitted(c=1.0):
    return fit_log1p_nmf(Y, 2, c=c, tol=1e-4, random_state=0)


@pytest.mark.parametrize("c", [1e-3, 37.3, math.inf])
def test_there_and_back(tmp_path, c):
    names = [f'gene "{j}", {j}' if j % 2 else f"gène {j}" for j in range(9)]
    fit = fitted(c).named(feature_names=names)
    write_r_list(fit, tmp_path / "a", counts=Y)
    again = read_r_list(tmp_path / "a")
    for name, table in zip(("loadings", "factors"), again["init"], strict=True):
        assert table.to_numpy(copy=True, dtype=float).tobytes("C") == getattr(fit, name).tobytes()
    assert again["size_factors"].tobytes() == fit.size_factors.tobytes()
    assert (again["c"], again["n_components"]) == (fit.c, 2)
    assert again["init"][1].index.tolist() == names
    assert again["counts"].sample_names is None
    assert again["counts"].feature_names.tolist() == names
    np.testing.assert_array_equal(again["counts"].to_scipy().toarray(), Y)
    write_r_list(fit, tmp_path / "b")
    assert "counts" not in read_r_list(tmp_path / "b")


def test_extreme_numbers_are_exact(tmp_path):
    rng = np.random.default_rng(0)
    values = np.abs(rng.integers(0, 2**63, size=(2000, 3)).view(np.float64))
    values = np.where(np.isfinite(values), values, 5e-324)
    values[0] = [0.0, 5e-324, 1.7976931348623157e308]
    parts = {"loadings": values, "factors": values[:5], "size_factors": np.full(2000, 0.1)}
    write_r_list(replace(fitted(0.1), **parts), tmp_path / "a")
    again = read_r_list(tmp_path / "a")
    assert again["init"][0].to_numpy().tobytes("C") == values.tobytes()
    assert again["c"] == 0.1


@pytest.mark.parametrize("c", [0.5, 20.0])
def test_the_means_are_those_of_r(tmp_path, c):
    """``fitted`` of the R package: s * cc * (exp(LL FF' / alpha) - 1)."""
    fit = fitted(c)
    write_r_list(fit, tmp_path / "a")
    tables = {
        name: np.loadtxt(tmp_path / "a" / f"{name}.csv", delimiter=",", skiprows=1, ndmin=2)[:, 1:]
        for name in ("LL", "FF", "s", "parameters")
    }
    cc, alpha = tables["parameters"][0]
    means = tables["s"] * cc * np.expm1(tables["LL"] @ tables["FF"].T / alpha)
    expected = fit.size_factors[:, None] * fit.link.mean(fit.loadings @ fit.factors.T / fit.link.alpha)
    np.testing.assert_allclose(means, expected, rtol=1e-12)
    assert alpha == max(1.0, c)


def test_a_fit_of_a_list_is_the_fit_that_was_written(tmp_path):
    fit = fitted().named(sample_names=[f"s{i}" for i in range(12)], feature_names=[f"g{j}" for j in range(9)])
    write_r_list(fit, tmp_path / "a", counts=Y)
    again = fit_log1p_nmf(
        **read_r_list(tmp_path / "a"), likelihood="exact", callbacks=[lambda _: True]
    )  # stopped before the first update
    np.testing.assert_allclose(again.loadings, fit.loadings, rtol=1e-12)
    np.testing.assert_allclose(again.factors, fit.factors, rtol=1e-12)
    assert again.log_likelihood == pytest.approx(fit.log_likelihood, rel=1e-12)
    assert again.n_iter == 0
    for name in ("sample_names", "feature_names"):
        assert getattr(again, name).tolist() == getattr(fit, name).tolist()


def write(folder, **files):
    """Files as R writes them, with some of them changed."""
    texts = {
        "LL": '"","k_1","k_2"\n"cell 1",0.5,1e-08\n"cell 2",2,3\n',
        "FF": '"","k_1","k_2"\n"1",1,0\n"2",0,1\n"3",1,1\n',
        "s": '"","s"\n"cell 1",0.75\n"cell 2",1.25\n',
        "parameters": '"","cc","alpha"\n"1",2,2\n',
        **files,
    }
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        if text is not None:
            (folder / f"{name}.csv").write_text(text)
    return folder


def test_what_r_writes(tmp_path):
    for number, files in enumerate(
        (
            {},
            {"LL": "k_1,k_2\r\n.5,1e-8\r\n2,3\r\n", "s": "s\n0.75\n1.25\n", "parameters": "cc\n2\n"},
            {"LL": '\ufeff"","k_1","k_2"\n1,0.5,0.00000001\n2,2,3\n\n'},
        )
    ):
        r = read_r_list(write(tmp_path / str(number), **files))
        np.testing.assert_array_equal(r["init"][0], [[0.5, 1e-8], [2, 3]])
        np.testing.assert_array_equal(r["size_factors"], [0.75, 1.25])
        assert r["c"] == 2.0
        assert (r["init"][0].index.tolist() == ["cell 1", "cell 2"]) == (not files)


def test_counts_of_every_kind(tmp_path):
    ones = np.ones((3, 1))
    values = replace(fitted(), loadings=ones, factors=ones, size_factors=np.ones(3))
    symmetric = np.array([[1, 2, 0], [2, 0, 3], [0, 3, 2**40]])
    for number, counts in enumerate(
        (symmetric, sparse.coo_array(symmetric), np.eye(3) * 4, np.zeros((3, 3)))
    ):
        write_r_list(values, tmp_path / str(number), counts=counts)
        dense = counts.toarray() if sparse.issparse(counts) else counts
        np.testing.assert_array_equal(
            read_r_list(tmp_path / str(number))["counts"].to_scipy().toarray(), dense
        )
        np.testing.assert_array_equal(mmread(tmp_path / str(number) / "counts.mtx").toarray(), dense)
    with pytest.warns(UserWarning, match="non-integer"):
        write_r_list(values, tmp_path / "f", counts=np.full((3, 3), 0.1))
    with pytest.warns(UserWarning, match="non-integer"):
        again = read_r_list(tmp_path / "f")["counts"]
    np.testing.assert_array_equal(again.to_scipy().toarray(), 0.1)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"LL": "a,b\n1,x\n"}, "LL.csv is not a table of numbers"),
        ({"LL": "a,b\n1,2\n3\n"}, "LL.csv is not a table of numbers"),
        ({"LL": ""}, "LL.csv is not a table of numbers"),
        ({"LL": "a,b\n1,-2\n"}, r"LL.csv must be finite and not negative, got -2.0 in row 1"),
        ({"LL": "a,b\n1,nan\n"}, "LL.csv must be finite and not negative, got nan in row 1"),
        ({"LL": "a,b\n1,Inf\n"}, "LL.csv must be finite and not negative, got inf"),
        ({"LL": "a\n1\n2\n"}, "LL.csv has 1 columns and FF.csv 2"),
        ({"s": "s\n1\n"}, "s.csv must have one column and 2 rows"),
        ({"s": "s\n1\n0\n"}, "s.csv must be positive, got 0.0"),
        ({"parameters": "c\n1\n"}, "parameters.csv must have one row with a column cc"),
        ({"parameters": "cc\n0\n"}, "c must be positive or inf"),
        ({"parameters": "cc,alpha\n3,1\n"}, r"has alpha 1.0, but max\(1, cc\) is 3.0"),
    ],
)
def test_bad_folders(tmp_path, files, message):
    with pytest.raises(ValueError, match=message):
        read_r_list(write(tmp_path / "a", **files))


def test_missing_and_existing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"s\.csv"):
        read_r_list(write(tmp_path / "a", s=None))
    fit = fitted()
    with pytest.raises(FileExistsError, match=r"already exists; choose another"):
        write_r_list(fit, tmp_path / "a")
    with pytest.raises(ValueError, match=r"counts must have shape \(12, 9\) like the fit"):
        write_r_list(fit, tmp_path / "b", counts=Y.T)
    assert not (tmp_path / "b").exists()
    folder = write(tmp_path / "c")
    (folder / "counts.mtx").write_text("not one")
    with pytest.raises(ValueError, match=r"counts\.mtx is not a MatrixMarket file|does not begin with"):
        read_r_list(folder)
