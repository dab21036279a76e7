"""Every command on good files."""

import csv
import json
import re
import shutil

import anndata
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from log1pnmf import Fit, Log1pNMF, __version__, fit_log1p_nmf
from log1pnmf.analysis import usage
from log1pnmf.analysis.markers import markers
from log1pnmf.cli import main
from log1pnmf.cli.exchange import read_r_list, write_r_list
from log1pnmf.cli.run_folder import RunFolder
from log1pnmf.counts.read import read_table

QUICK = ["--set", "tol=1e-4", "--set", "init=nndsvd", "--jobs", "1"]


def rows(path, delimiter=","):
    with open(path, newline="") as file:
        return list(csv.reader(file, delimiter=delimiter))


GROUPS = {"Input": "--layer", "Model": "--noise", "Computing": "--engine", "Output": "--report"}


def test_version_and_help(call):
    assert call("--version").out.splitlines()[0] == f"log1pnmf {__version__}"
    commands = call("--help").out.split("Commands")[1]
    for name in ("fit", "sweep", "select", "transform", "markers", "report", "info", "convert", "demo"):
        assert name in commands
    assert "..." not in commands  # one short sentence for each
    told = call("fit", "--help").out
    groups = {name: told.partition(f"─ {name} ─")[2].partition("╰─")[0] for name in GROUPS}
    assert all(option in groups[name] for name, option in GROUPS.items())


def test_fit_leaves_a_whole_run(run_folder):
    names = {path.name for path in run_folder.iterdir()}
    tables = {f"{what}_c={c}.csv" for what in ("loadings", "factors") for c in ("1", "inf")}
    assert names == tables | {"models", "run.json", "samples.csv", "sweep.csv", "report.html"}
    record = json.loads((run_folder / "run.json").read_text())
    assert record["groupby"] == "type"
    assert record["parameters"]["n_components"] == 3
    assert len(record["source"]["sha256"]) == 64
    assert [row[0] for row in rows(run_folder / "sweep.csv")] == ["c", "1", "inf"]
    report = (run_folder / "report.html").read_text()
    assert "gene" in report
    assert record["source"]["path"] not in report  # it is sent to others; the file's name is enough


def test_fit_is_that_of_the_library(run_folder, counts_file):
    table = read_table(counts_file)
    model = Log1pNMF(3, c=1.0, random_state=0, tol=1e-4).fit(table.counts)
    kept = Fit.load(run_folder / "models" / "c=1.npz")
    np.testing.assert_array_equal(kept.factors, model.fit_.factors)
    assert kept.settings == model.fit_.settings
    assert kept.sample_names.tolist() == table.sample_names.tolist()


def test_fit_says_what_it_did(fit, tmp_path):
    done = fit("--min-samples", 2, "--no-report")
    assert "60 samples x 25 features" in done.out
    assert "features in fewer than 2 samples: 1 of 25 removed" in done.out
    assert "log-likelihood -" in done.out
    assert "deviance explained" in done.out
    tops = done.out.split("top features)\n")[1].splitlines()[:2]
    assert [line.split()[0] for line in tops] == ["k0", "k1"]
    assert all("gene" in line for line in tops)
    assert not (tmp_path / "out" / "report.html").exists()
    assert json.loads((tmp_path / "out" / "run.json").read_text())["filters"]


def test_checkpoint_and_resume_are_one_fit(call, counts_file, tmp_path):
    common = ["fit", counts_file, "-k", 3, "--no-report", "--set", "likelihood=exact", *QUICK]
    state = tmp_path / "state.npz"
    assert call(*common, "-o", tmp_path / "whole").code == 0
    assert call(*common, "-o", tmp_path / "part", "--checkpoint", state, "--time-limit", 1e-6).code == 0
    assert call(*common, "-o", tmp_path / "rest", "--resume", state).code == 0
    part, rest, whole = (
        Fit.load(tmp_path / name / "models" / "c=1.npz") for name in ("part", "rest", "whole")
    )
    assert not part.converged
    np.testing.assert_array_equal(rest.factors, whole.factors)


def test_write_h5ad_keeps_what_was_there(fit, tmp_path):
    target = tmp_path / "new.h5ad"
    fit("--no-report", "--write-h5ad", target)
    adata = anndata.read_h5ad(target)
    assert adata.obsm["X_log1p_nmf"].shape == (60, 2)
    assert adata.obs["type"].tolist()[:3] == ["a", "b", "c"]
    np.testing.assert_array_equal(adata.varm["log1p_nmf"], Fit.load(tmp_path / "out/models/c=1.npz").factors)


def test_sweep(call, fit, counts_file, tmp_path):
    done = fit("-c", "10,0.1,inf", "--no-report", command="sweep")
    table = rows(tmp_path / "out" / "sweep.csv")
    assert [row[0] for row in table] == ["c", "0.1", "10", "inf"]
    assert "factor_correlation" in table[0]
    assert (np.array([row[1] for row in table[1:]], dtype=float) < 0).all()
    # what it says to do next can be done
    advice = done.out.split("then:\n")[1].splitlines()
    assert len(advice) == 3
    target = tmp_path / "loadings.csv"
    places = {"NEW_FILE": counts_file, "loadings.csv": target}
    for line in advice:
        program, *words = line.split()
        assert program == "log1pnmf"
        assert call(*(places.get(word, word) for word in words)).code == 0
    assert len(rows(target)) == 61


def test_transform_finds_the_training_loadings(call, run_folder, counts_file, tmp_path):
    target = tmp_path / "l.tsv.gz"
    done = call("transform", run_folder, counts_file, "-c", "inf", "-o", target, "--prior", 0, "--json")
    assert done.json["shape"] == [60, 3]
    again = read_table(target, fractions="allow")
    fitted = Fit.load(run_folder / "models" / "c=inf.npz")
    np.testing.assert_allclose(again.counts.to_scipy().toarray(), fitted.loadings, atol=0.02)
    assert again.sample_names[0] == "cell0"


def test_transform_matches_features_by_name(call, run_folder, counts_file, tmp_path):
    adata = anndata.read_h5ad(counts_file)
    order = np.random.default_rng(0).permutation(adata.n_vars)
    extra = anndata.AnnData(sparse.csr_matrix(np.ones((60, 1), dtype=np.float32)))
    extra.obs_names, extra.var_names = adata.obs_names, ["unknown"]
    anndata.concat([adata[:, order], extra], axis=1).write_h5ad(tmp_path / "mixed.h5ad")
    model = run_folder / "models" / "c=1.npz"
    assert call("transform", model, counts_file, "-o", tmp_path / "a.csv").code == 0
    mixed = call("transform", model, tmp_path / "mixed.h5ad", "-o", tmp_path / "b.csv")
    assert "1 features are not in the model" in mixed.out
    assert rows(tmp_path / "a.csv") == rows(tmp_path / "b.csv")
    anndata.read_h5ad(counts_file)[:, :20].copy().write_h5ad(tmp_path / "few.h5ad")
    common = ["transform", run_folder, tmp_path / "few.h5ad", "-c", 1, "-o", tmp_path / "l.csv"]
    assert "20 of 25 features of the fit are shared" in call(*common).out
    assert "set to zero" in call(*common, "--missing", "zero", "--force").out


def test_report_again_and_without_the_data(call, run_folder, counts_file, tmp_path):
    done = call("report", run_folder, "-o", tmp_path / "again.html", "--title", "Sixty cells")
    assert done.code == 0
    assert "Sixty cells" in (tmp_path / "again.html").read_text()
    moved = tmp_path / "gone.h5ad"
    moved.write_bytes(counts_file.read_bytes())
    assert call("fit", moved, "-k", 2, "-o", tmp_path / "out", "--no-report", *QUICK).code == 0
    moved.unlink()
    done = call("report", tmp_path / "out")
    assert done.code == 0
    assert "not there any more" in done.out
    assert (tmp_path / "out" / "report.html").exists()


def test_info_on_counts(call, counts_file, tmp_path):
    facts = call("info", counts_file, "--json").json
    assert (facts["n_samples"], facts["n_features"], facts["integer"]) == (60, 25, True)
    assert facts["labels"] == {"type": "a (20), b (20), c (20)"}
    assert "gene0" in call("info", counts_file).out
    (tmp_path / "t.csv").write_text("a,b\n0.5,2345678\n2,0\n")
    text = call("info", tmp_path / "t.csv").out
    assert "up to 2,345,678" in text
    assert "NOT all whole" in text


def test_info_on_run_and_model(call, run_folder):
    assert call("info", run_folder, "--json").json["groupby"] == "type"
    assert call("info", run_folder).out.count("Log1pNMF:") == 2
    model = run_folder / "models" / "c=inf.npz"
    assert call("info", model, "--json").json["c"] == "inf"
    assert "3 factors" in call("info", model).out


def test_convert_to_r_and_back(call, run_folder, counts_file, tmp_path):
    assert call("convert", run_folder, tmp_path / "r", "-c", 1, "--counts", counts_file).code == 0
    fitted = Fit.load(run_folder / "models" / "c=1.npz")
    np.testing.assert_array_equal(read_r_list(tmp_path / "r")["init"][1], fitted.factors)
    back = call("convert", tmp_path / "r", tmp_path / "back.npz")
    assert back.code == 0, back.err
    np.testing.assert_allclose(Fit.load(tmp_path / "back.npz").loadings, fitted.loadings, rtol=1e-12)
    assert call("convert", tmp_path / "r", tmp_path / "counts.csv").code == 0
    assert read_table(tmp_path / "counts.csv").shape == (60, 25)


def test_usage(call, run_folder, tmp_path):
    """Labels of the run are compared; a table is printed, and written where it is asked for."""
    by_type = ["usage", run_folder, "-c", "1", "--groupby", "type"]
    with_warning = call(*by_type, "--json")
    assert "or --samples-are-replicates if" in with_warning.err
    assert with_warning.json["group"] == ["b"] * 3 + ["c"] * 3
    told = call(*by_type, "--samples-are-replicates", "-o", tmp_path / "usage.csv")
    assert (told.code, told.err) == (0, "")
    assert [line[1] for line in rows(tmp_path / "usage.csv")[1:]] == ["b"] * 3 + ["c"] * 3
    unknown = call("usage", run_folder, "-c", "1", "--groupby", "nothing")
    assert (unknown.code, "no label 'nothing'" in unknown.err) == (2, True)


def test_usage_by_a_number(call, tmp_path):
    """Numbers have a slope, and can be groups, too; categories are groups, in their order, as in Python."""
    adata = anndata.AnnData(np.random.default_rng(0).poisson(3.0, (48, 6)).astype(np.float32))
    adata.obs["donor"] = np.repeat([f"d{i}" for i in range(8)], 6)
    adata.obs["kind"] = pd.Categorical(np.tile(["2", "1"], 24), ["2", "1"])
    adata.obs["age"] = pd.array([31, 45, None, 23, 67, 39, 45, 31], dtype="Int64").repeat(6)
    adata.write_h5ad(tmp_path / "a.h5ad")
    options = ("-k", 2, "--set", "tol=1e-3", "--no-report", "-o", tmp_path / "out")
    assert call("fit", tmp_path / "a.h5ad", *options).code == 0
    by_age = ("usage", tmp_path / "out", "--groupby", "age", "--replicate", "donor")
    assert "slope on age, 7 replicates" in (told := call(*by_age)).err + told.out
    found = call(*by_age, "--relative-to", "none", "--json").json
    assert (found["group"], set(found["relative_to"]), len(found["slope"])) == (["age"] * 2, {""}, 2)
    within = call(*by_age, "--within", "kind", "--interaction", "--relative-to", "k0", "--json").json
    assert (within["within"], set(within["relative_to"])) == (["2"] * 2 + ["1"] * 2, {"k0"})
    assert "--interaction needs --within" in call(*by_age, "--interaction").err
    assert sorted(set(call(*by_age, "--as-groups", "--json").json["group"])) == ["31", "39", "45", "67"]
    assert call("convert", tmp_path / "a.h5ad", tmp_path / "b.h5ad").code == 0
    in_python = usage(RunFolder.open(tmp_path / "out").fit(), adata.obs["kind"], replicate=True).reference
    for file in ([], [tmp_path / "b.h5ad"]):  # from the run, and from a file
        by_kind = call(*by_age[:2], *file, "--groupby", "kind", "--replicate", "donor", "--json").json
        assert set(by_kind["reference"]) == {in_python} == {"2"}


@pytest.mark.filterwarnings("ignore:no markers are named:UserWarning")  # few samples
def test_markers(call, run_folder, counts_file, tmp_path):
    """The command finds those of the library, from the run or from a model with its counts."""
    done = call("markers", run_folder, "-c", 1, "-o", tmp_path / "markers.tsv")
    assert done.code == 0, done.err
    fit, counts = Fit.load(run_folder / "models" / "c=1.npz"), read_table(counts_file).counts
    expected = markers(fit, counts)
    table = rows(tmp_path / "markers.tsv", "\t")
    assert table[0][:4] == ["factor", "rank", "feature", "log2_fold_change"]
    assert [row[2] for row in table[1:]] == expected.table(100)["feature"].tolist()
    printed = [line.split()[:2] for line in done.out.splitlines() if line.lstrip().startswith("k")]
    assert printed == [[f"k{k}", str(n)] for k, n in enumerate(expected.n_rising)]
    anndata.read_h5ad(counts_file)[::-1, ::-1].write_h5ad(tmp_path / "shuffled.h5ad")
    model = run_folder / "models" / "c=1.npz"
    again = call("markers", model, tmp_path / "shuffled.h5ad", "--top", 2, "--json").json
    assert again["feature"] == expected.table(2)["feature"].tolist()
    assert "a model needs its counts" in call("markers", model).err


def test_markers_and_usage_of_other_samples(call, run_folder, counts_file, tmp_path):
    """Of a file with some of the fitted samples, or with new ones, as of AnnData."""
    adata, model = anndata.read_h5ad(counts_file), run_folder / "models" / "c=1.npz"
    fit, of_types = Fit.load(model), ["--groupby", "type", "--samples-are-replicates", "--json"]
    adata[40:5:-1, ::-1].write_h5ad(tmp_path / "some.h5ad")
    some = call("usage", run_folder, tmp_path / "some.h5ad", "-c", 1, *of_types)
    part = {"replicate": True, "loadings": fit.loadings[40:5:-1]}
    assert some.json["mean"] == pytest.approx(usage(fit, adata.obs["type"][40:5:-1], **part).table()["mean"])
    assert "these are 35 samples of the fit" in some.err
    wrong = call("usage", run_folder, tmp_path / "some.h5ad", "-c", 1, "--groupby", "typo")
    assert ("these are 35" in wrong.out + wrong.err, "no sample column 'typo'" in wrong.err) == (False, True)
    adata.obs_names = [f"new{i}" for i in range(60)]
    adata[:, 1:].write_h5ad(tmp_path / "new.h5ad")
    frame, again = adata.to_df().iloc[:, 1:], Log1pNMF.of(fit)
    loadings = again.transform(frame, features="shared")
    new = call("usage", run_folder, tmp_path / "new.h5ad", "-c", 1, *of_types)
    part["loadings"] = loadings
    assert new.json["mean"] == pytest.approx(usage(fit, adata.obs["type"], **part).table()["mean"])
    assert "these are 60 samples that were not fitted; 24 of 25 features" in new.err
    tested = call("markers", model, tmp_path / "new.h5ad", "--json").json
    assert tested["feature"] == again.markers(frame, loadings=loadings).table(100)["feature"].tolist()
    adata.var_names = [f"other{j}" for j in range(25)]
    adata.write_h5ad(tmp_path / "none.h5ad")
    assert (
        "no fitted feature (first here 'other0', in the fit 'gene0')"
        in call("markers", model, tmp_path / "none.h5ad").err
    )


def test_columns_of_features(call, counts_file, tmp_path):
    """--mask-var chooses features, --gene-symbols names them; both also when a run is read again."""
    adata = anndata.read_h5ad(counts_file)
    adata.var["used"] = pd.array(np.arange(25) < 12, dtype="boolean")
    adata.var["symbol"] = ["TWICE", "TWICE", *(f"S{j}\r" for j in range(2, 25))]  # lines of Windows
    adata.write_h5ad(tmp_path / "a.h5ad")
    named = ["--gene-symbols", "symbol"]
    options = ["fit", tmp_path / "a.h5ad", "-k", 2, "--no-report", *named, *QUICK]
    target = ["--write-h5ad", tmp_path / "fitted.h5ad"]
    done = call(*options, "--mask-var", "used", "-o", tmp_path / "out", *target)
    assert done.code == 0, done.err
    assert "features outside of the mask: 13 of 25 removed" in done.out
    assert "2 features keep their names" in done.out
    fit = Fit.load(tmp_path / "out" / "models" / "c=1.npz")
    assert fit.feature_names.tolist() == ["gene0", "gene1", *(f"S{j}" for j in range(2, 12))]
    written = anndata.read_h5ad(tmp_path / "fitted.h5ad")
    assert written.var["symbol"].tolist() == adata.var["symbol"].tolist()[:12]
    listed = call("markers", tmp_path / "out", "--json", "--max-samples", 50).json["feature"]
    assert set(listed) <= set(fit.feature_names)
    assert (
        call("transform", tmp_path / "out", tmp_path / "a.h5ad", *named, "-o", tmp_path / "l.csv").code == 0
    )
    wrongs = {"symbol": "must be true or false", "none": "no feature column 'none'"}
    wrongs |= dict.fromkeys(("variable:0", "variable:-3+all"), "must end with a whole number > 0")
    for wrong, word in wrongs.items():
        refused = call(*options, "--mask-var", wrong, "-o", tmp_path / "wrong")
        assert (refused.code, word in refused.err) == (2, True)
    (tmp_path / "t.csv").write_text("a,b\n2,1\n2,0\n")
    assert "a column of var of an AnnData file" in call("info", tmp_path / "t.csv", *named).err


def test_a_log_gets_a_line_now_and_then(call, counts_file, tmp_path, monkeypatch, capsys):
    """In the shell only: scripts stay silent."""
    monkeypatch.setattr("log1pnmf._common.checks.LOG_EVERY", 0.0)
    done = call("fit", counts_file, "-k", 3, "-o", tmp_path / "out", "--no-report", *QUICK[:2])
    lines = done.err.splitlines()
    assert lines[0].startswith("searching for a start (1 of 2): iteration ")
    assert re.fullmatch(r"fitting: iteration \d+, log-likelihood rising by \de-\d\d", lines[-1])
    monkeypatch.setattr("log1pnmf._common.checks.LOG_EVERY", 1e6)
    assert call("fit", counts_file, "-k", 3, "-o", tmp_path / "2", "--no-report", *QUICK).err == ""
    fit_log1p_nmf(read_table(counts_file).counts, 3)
    assert capsys.readouterr().err == ""


def test_rename(call, run_folder, tmp_path):
    """Model, tables and the next report have the names."""
    place = tmp_path / "run"
    shutil.copytree(run_folder, place)
    assert call("rename", place, "k1=interferon").code == 2  # two models: which one?
    assert call("rename", place, "-c", "inf", "k1=interferon", "k2=cell cycle").code == 0
    assert (place / "loadings_c=inf.csv").read_text().startswith("sample,k0,interferon,cell cycle\n")
    assert (place / "factors_c=1.csv").read_text().startswith("feature,k0,k1,k2\n")
    assert call("report", place).code == 0
    assert "interferon" in (place / "report.html").read_text()
    assert call("rename", place, "-c", "1", "k1").code == 2
    assert call("rename", place, "-c", "1", "k9=x").code == 2


def test_variable_features_are_fitted_and_the_others_added(call, counts_file, tmp_path):
    """Files without var take variable:N; with +all every feature has factors, and transform is the same."""
    table, out, loadings = tmp_path / "t.csv", tmp_path / "all", tmp_path / "all.csv"
    assert call("convert", counts_file, table).code == 0
    base = ["-k", 2, "--no-report", "--min-counts", 2, *QUICK]
    done = call("fit", table, *base, "--mask-var", "variable:10", "-o", tmp_path / "some")
    assert "features outside of the mask: 15 of 25 removed" in done.out, done.err
    some = Fit.load(tmp_path / "some" / "models" / "c=1.npz")
    assert call("transform", tmp_path / "some", table, "-o", tmp_path / "some.csv").code == 0
    expected = np.loadtxt(tmp_path / "some.csv", delimiter=",", skiprows=1, usecols=(1, 2))
    done = call("fit", table, *base, "--mask-var", "variable:10+all", "-o", out)
    assert "10 features were fitted, and 15 were added given the loadings" in done.out, done.err
    assert f"log-likelihood {some.log_likelihood:,.0f} (fitted features), deviance" in done.out
    every = Fit.load(out / "models" / "c=1.npz")
    assert (every.loadings == some.loadings).all()
    assert (every.factors[every.fitted_features] == some.factors).all()
    labels = zip(every.feature_labels, map(str, every.fitted_features), strict=True)
    assert rows(out / "features.csv") == [["feature", "fitted"], *map(list, labels)]
    assert call("markers", out, "--json").code == 0
    assert call("transform", out, table, "-o", loadings).code == 0
    found = np.loadtxt(loadings, delimiter=",", skiprows=1, usecols=(1, 2))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    refused = call("fit", table, *base, "--mask-var", "used+all", "-o", tmp_path / "wrong")
    assert "a column of var of an AnnData file" in refused.err


def test_programmes_of_a_run(call, counts_file, tmp_path):
    assert call("fit", counts_file, "-k", 2, "--no-report", *QUICK, "-o", tmp_path / "run").code == 0
    done = call("convert", tmp_path / "run", tmp_path / "p.h5ad")
    assert (done.code, "2 gene programmes" in done.out) == (0, True), done.err
    found, fit = anndata.read_h5ad(tmp_path / "p.h5ad"), Fit.load(tmp_path / "run" / "models" / "c=1.npz")
    np.testing.assert_array_equal(found.varm["loadings"], fit.factors.T)
    assert found.obs.columns.tolist() == anndata.read_h5ad(counts_file).obs.columns.tolist()


# ---------- batches: a column of the file


def test_batches_are_a_column_of_the_file_also_for_new_samples(call, counts_file, tmp_path):
    out = tmp_path / "out"
    asked = ["--batch", "type", "--groupby", "type", "--set", "max_iter=5", "--jobs", "1", "--no-report"]
    done = call("fit", counts_file, "-k", "2", "-o", out, *asked)
    assert done.code == 0, done.err
    assert "group 'a' is all of batch 'a'" in " ".join(done.out.split())
    assert json.loads((out / "run.json").read_text())["batch"] == "type"
    fit = Fit.load(next((out / "models").iterdir()))
    assert fit.batches.names == ("a", "b", "c")
    write_r_list(fit, tmp_path / "r")
    table = np.genfromtxt(tmp_path / "r" / "batch_effects.csv", delimiter=",", skip_header=1)
    assert (table[:, 1:] == fit.batches.effects.T).all()
    missing = call("fit", counts_file, "-k", "2", "-o", tmp_path / "other", "--batch", "donor")
    assert missing.code != 0
    assert "'donor'" in missing.err
    adata = anndata.read_h5ad(counts_file)
    adata.obs["type"] = adata.obs["type"].astype("string").where(np.arange(len(adata)) > 2)
    adata.write_h5ad(tmp_path / "gaps.h5ad")
    gaps = call("fit", tmp_path / "gaps.h5ad", "-k", "2", "-o", tmp_path / "other", "--batch", "type")
    assert (gaps.code, "but 3 have none" in gaps.err) == (2, True)
    for name, given in (("with", ["--batch", "type"]), ("without", [])):
        assert call("transform", out, counts_file, "-o", tmp_path / f"{name}.csv", *given).code == 0
    counts = read_table(counts_file).counts
    for name, labels in (("with", fit.batches.sample_names), ("without", None)):
        written = np.genfromtxt(tmp_path / f"{name}.csv", delimiter=",", skip_header=1)[:, 1:]
        expected = Log1pNMF.of(fit).transform(counts, batch=labels)
        np.testing.assert_allclose(written, expected, rtol=1e-5, atol=1e-9)


# ---------- tables and gene sets


def test_files_of_what_is_known(tmp_path, capsys):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.poisson(2.0, (20, 9)), [f"s{i}" for i in range(20)], [f"g{j}" for j in range(9)])
    frame.to_csv(tmp_path / "counts.csv")
    design = pd.DataFrame({"everyone": 1.0, "dose": np.linspace(0, 0.5, 20)}, frame.index)[::-1]
    design.to_csv(tmp_path / "design.csv")
    pd.DataFrame({"ambient": np.linspace(0.1, 1, 9)}, frame.columns).to_csv(tmp_path / "ambient.csv")
    (tmp_path / "sets.gmt").write_text("cycle\tabout\tg1\tg2\tother\n\nearly\t\tg3\n")
    arguments = ["fit", str(tmp_path / "counts.csv"), "-k", "6", "-o", str(tmp_path / "out"), "--no-report"]
    files = {"fixed_loadings": "design.csv", "fixed_factors": "ambient.csv", "mask": "sets.gmt"}
    given = [part for name, file in files.items() for part in ("--set", f"{name}={tmp_path / file}")]
    assert main([*arguments, *given, "--set", "init=nndsvd", "--jobs", "1"]) == 0
    fit = RunFolder.open(tmp_path / "out").fit()
    assert fit.factor_names == ["everyone", "dose", "ambient", "cycle", "early", "k5"]
    np.testing.assert_array_equal(fit.loadings[:, 1], np.linspace(0, 0.5, 20))
    assert np.flatnonzero(fit.mask[:, 0]).tolist() == [1, 2]
    capsys.readouterr()
    assert main([*arguments, "--force", "--set", f"mask={tmp_path / 'counts.csv'}"]) != 0
    assert "a name, a description and features" in capsys.readouterr().err


@pytest.fixture
def file(matrix, tmp_path):
    obs = pd.DataFrame({"type": ["a", "b"] * 101 + ["a"]}, index=[f"s{i}" for i in range(203)])
    adata = anndata.AnnData(
        sparse.csr_matrix(matrix), obs=obs, var=pd.DataFrame(index=[f"g{j}" for j in range(60)])
    )
    adata.write_h5ad(tmp_path / "counts.h5ad")
    return tmp_path / "counts.h5ad"


def test_fit_from_disk(call, file, matrix, tmp_path):
    options = ["-k", 3, "--jobs", 1, "--no-report", "--groupby", "type", "--max-memory", "1GB"]
    options += ["--engine", "streaming", "--set", "tol=1e-5", "--set", "likelihood=chebyshev"]
    done = call("fit", file, "-o", tmp_path / "out", *options)
    assert done.code == 0, done.err
    assert "203 samples x 60 features" in done.out
    assert "1 chunks" in done.out
    fit = Fit.load(next((tmp_path / "out").rglob("*.npz")))
    assert fit.settings.engine == "streaming"
    assert fit.sample_names.tolist() == [f"s{i}" for i in range(203)]
    assert fit.feature_names[0] == "g0"
    assert fit.loadings.shape == (203, 3)
    expected = fit_log1p_nmf(matrix, 3, likelihood="chebyshev", tol=1e-5, engine="streaming")
    np.testing.assert_allclose(fit.objective, expected.objective, rtol=1e-12)


def test_what_does_not_stream_is_refused(call, file, tmp_path):
    streaming = ["-k", 3, "-o", tmp_path / "out", "--engine", "streaming"]
    for wrong, word in (
        (["--min-samples", 3], "cannot filter or transpose"),
        (["--write-h5ad", tmp_path / "x.h5ad"], "would load all counts"),
        (["--max-memory", "much"], "memory must be a size"),
        (["--mask-var", "used"], "cannot filter or transpose"),
    ):
        done = call("fit", file, *streaming, *wrong)
        assert done.code != 0
        assert word in " ".join(done.err.replace("│", " ").split())


def test_the_address_of_a_cluster_is_an_engine(call, file, tmp_path, monkeypatch):
    plans = []
    monkeypatch.setattr("log1pnmf.cli.fit.carry_out", lambda plan: plans.append(plan) or 0)
    assert call("fit", file, "-k", 3, "-o", tmp_path / "out", "--engine", "tcp://host:8786").code == 0
    assert (plans[0].scheduler, plans[0].parameters["engine"]) == ("tcp://host:8786", "streaming")
