"""Names of factors: given once, they are in every table, plot and file."""

import numpy as np
import pytest

from log1pnmf import Fit, Log1pNMF
from log1pnmf.analysis import suggest_names
from log1pnmf.report import write_report

COUNTS = np.random.default_rng(0).poisson(np.where(np.eye(3).repeat(20, 0).repeat(8, 1), 6.0, 0.5))
GENES = [f"g{j}" for j in range(24)]


@pytest.fixture
def model():
    return Log1pNMF(3, init="nndsvd", tol=1e-4, random_state=0, n_jobs=1).fit(COUNTS)


@pytest.mark.filterwarnings("ignore:in 1 of 1 comparison:UserWarning")
def test_names_are_everywhere(model, tmp_path):
    assert model.rename_factors({"k1": "one", 2: "two"}) is model
    names = ["k0", "one", "two"]
    assert model.fit_.factor_names == names
    assert list(dict.fromkeys(model.top_features(3).factor)) == names
    for split in (False, True):
        found = model.markers(COUNTS, split=split)
        assert list(dict.fromkeys(found.table()["factor"])) == names
        assert found.top("two", 4) == found.top(2, 4)
    assert model.usage(np.repeat(["a", "b"], 30), replicate=True).table()["factor"].tolist() == names
    assert "  two  " in model.summary()
    assert ">two<" in write_report(tmp_path / "r.html", model).read_text().replace(" <", "<")
    model.save(tmp_path / "model.npz")
    assert Fit.load(tmp_path / "model.npz").factor_names == names
    assert Log1pNMF.load(tmp_path / "model.npz").fit_.normalized("factor_sum").factor_names == names
    model.fit(COUNTS)  # another fit has names of its own
    assert model.fit_.factor_names == ["k0", "k1", "k2"]


def test_refusals(model):
    for names, message in (
        ({"k7": "x"}, "a factor must be one of 'k0', 'k1', 'k2' or 0 to 2, got 'k7'"),
        (["a", "b"], "there are 3 factors, got 2 names"),
        ({"k1": "k0"}, "a name of its own, got 'k0' twice"),
        ({"k1": "a\nb"}, "printable letters"),
    ):
        with pytest.raises(ValueError, match=message):
            model.rename_factors(names)


def test_suggestions(model, tmp_path):
    kinds = np.repeat(["x", "y", "z"], 20)
    by_group = suggest_names(model, groups=kinds)
    strongest = [kinds[np.argmax(column)] for column in model.loadings_.T]
    assert by_group["name"].tolist() == strongest
    sets = {"first": GENES[:8], "second": GENES[8:16], "none": GENES[::5], "elsewhere": ["q"]}
    lines = [f"{name}\tabout\t" + "\t".join(members) for name, members in sets.items()]
    (tmp_path / "sets.gmt").write_text("\n".join(lines) + "\n")
    table = suggest_names(model, tmp_path / "sets.gmt", feature_names=GENES)
    assert sorted(table["name"].dropna()) == ["first", "second"]
    assert "8 of its first" in " ".join(table["reason"])
    clusters = {"groups": np.repeat(["0", "1", "8"], 20), "feature_names": GENES}
    assert sorted(suggest_names(model, tmp_path / "sets.gmt", **clusters)["name"])[:2] == ["first", "group 8"]
    assert set(suggest_names(model, sets, groups=kinds, feature_names=GENES)["name"]) == set("xyz")
    model.rename_factors(dict(table.dropna()[["factor", "name"]].to_numpy()))
    assert {"first", "second"} <= set(model.fit_.factor_names)
    with pytest.raises(ValueError, match="no set has a feature of the fit"):
        suggest_names(model, sets)
    with pytest.raises(ValueError, match="pass gene_sets, groups or both"):
        suggest_names(model)
    (tmp_path / "bad.gmt").write_text("only a name\n")
    with pytest.raises(ValueError, match="has no name or no features"):
        suggest_names(model, tmp_path / "bad.gmt")
