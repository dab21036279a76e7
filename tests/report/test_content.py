"""What is in the file: numbers of the model, words that follow from them, and nothing that could be run."""

import base64
import html
import html.parser
import io
import re
from dataclasses import replace

import anndata
import numpy as np
import pytest
from matplotlib.image import imread
from sklearn.exceptions import NotFittedError

from log1pnmf import Log1pNMF, dominant_factor, shares
from log1pnmf._common import checks
from log1pnmf.analysis import diagnose
from log1pnmf.analysis.groups import Groups, groups_of
from log1pnmf.analysis.metrics import deviance_explained
from log1pnmf.fitting.ranking import ranking_of
from log1pnmf.pl.canvas import fit_of_arrays as fit_of
from log1pnmf.report import document, write_report
from log1pnmf.report import figures as structure
from log1pnmf.report import inputs as words
from log1pnmf.report.comparison import compare
from log1pnmf.report.document import MOST_GROUPS
from log1pnmf.report.figures import histogram, log_curve
from log1pnmf.report.sections import served_groups


class Reader(html.parser.HTMLParser):
    """Tags, texts and tables of a page, as a browser would see them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.rows, self._open = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
            self._open = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._open = None

    def handle_data(self, data):
        self.texts.append(data)
        if self._open:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def reader(page):
    return Reader(page.read_text(encoding="utf-8"))


def text_of(path):
    return " ".join(" ".join(Reader(path.read_text(encoding="utf-8")).texts).replace("\u00a0", " ").split())


# ---------------------------------------------------------------- numbers


def test_embedded_loadings_and_groups_are_those_of_the_models(page, embedded, models, about):
    data, names = embedded(page), np.array(about["sample_names"])
    assert sorted(data["names"]) == sorted(names)
    rows = [about["sample_names"].index(name) for name in data["names"]]
    for model, shown in zip(models, data["models"], strict=True):
        values = np.reshape(shown["loadings"], (len(rows), 3)) / 1000
        np.testing.assert_allclose(values, model.loadings_[rows], atol=5.001e-4)
        signal = values * shown["weights"]
        drawn = signal / signal.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(drawn, shares(model)[rows], atol=2e-3)
        assert shown["factors"] == ["k0", "k1", "k2"]
    group_of = dict(zip(about["sample_names"], about["groupby"], strict=True))
    assert [stop - start for _, start, stop in data["spans"]] == [20, 30, 40]  # sorted by name
    for name, start, stop in data["spans"]:
        assert {group_of[sample] for sample in data["names"][start:stop]} == {name}


def test_tables_hold_mean_loadings_and_certificates(reader, models, about):
    labels = np.asarray(about["groupby"])
    rows = [row for row in reader.rows if row and row[0].startswith("plain ")]
    assert len(rows) == 2  # one for each model
    for row, model in zip(rows, models, strict=True):
        means = model.loadings_[labels == "plain"].mean(axis=0)
        assert row[0].split()[1] == "40"
        assert row[1:] == [f"{value:.2f}" for value in means]
    rows = {row[0]: row[1:] for row in reader.rows if row}
    for model, shown in zip(models, rows["Certificate"], strict=True):
        assert shown.startswith(f"exact log-likelihood {model.log_likelihood_:,.1f}; ")
    assert rows["Factors (K)"] == ["3", "3"]
    assert rows["Samples"] == ["90"]
    assert rows["Samples without any count"] == ["0"]


def test_what_is_not_explained(page, reader, models, counts, about):
    found = diagnose(models[0], counts)
    worst = int(np.nanargmax(found.feature_dispersion))
    named = [row for row in reader.rows if row and row[0] == about["feature_names"][worst]]
    assert any(row[2] == f"{found.feature_dispersion[worst]:.3g}" for row in named if len(row) == 3)
    typical = np.median(found.feature_dispersion)
    text = html.unescape(page.read_text())
    assert f"a typical feature is {typical:.2f} times" in text
    assert "No sample is explained much worse" in text
    without = write_report(page.parent / "without.html", models[0]).read_text()
    assert "does not explain" not in without


FIRST = r'data-value="1">1</td><td>(.*?)</td><td class="number" data-value="(.*?)"(.*?)</tr>'


def first_features(text, number):
    """Name, log2 fold change and what follows of every factor's first feature."""
    table = text.split(f'id="feature-table-{number}"')[1].split("</table>")[0]
    return [(html.unescape(name), float(change), rest) for name, change, rest in re.findall(FIRST, table)]


def test_features_that_lead_a_factor_are_its_markers(page, models, counts, about):
    text = page.read_text(encoding="utf-8")
    for number, model in enumerate(models):
        found = model.markers(counts, feature_names=about["feature_names"])
        listed = first_features(text, number)
        assert len(listed) == 3
        for k, (name, change, rest) in enumerate(listed):
            j = about["feature_names"].index(name)
            assert j == found.top_index(k, 1)[0] == ranking_of(model.fit_).top(k, 1)[0]
            assert change == pytest.approx(found.log2_fold_change[j, k], rel=1e-12)
            assert f'data-value="{model.components_[k, j]}"' in rest
            if np.isnan(found.p[j, k]):
                continue
            assert f'data-value="{found.effect[j, k]}"' in rest
            assert f'data-value="{found.adjusted_p[j, k]}"' in rest
            n_markers = int((found.adjusted_p[:, k] <= 0.05).sum())
            assert f"{n_markers} features rise significantly with it" in text
    assert ", tested on 90 of 90 samples)" in text


def test_where_few_features_are_significant_they_are_named_and_the_top_ones_listed(tmp_path, models, counts):
    names = [f"gene{j}" for j in range(counts.shape[1])]
    found = models[0].markers(counts, feature_names=names)
    only = found.top_index(0, None)[-1]
    p = np.ones_like(found.adjusted_p)
    p[only, 0] = 0.01
    few = replace(found, adjusted_p=p, n_rising=np.eye(1, len(found.n_rising), dtype=int)[0])
    path = write_report(tmp_path / "r.html", models[0], counts=counts, feature_names=names, markers=few)
    text = path.read_text("utf-8")
    assert f"one feature rises significantly with it: {names[only]}." in text
    first = text.split('<ol class="bars')[1].split("</ol>")[0]
    assert all(f">{names[j]}<" in first for j in ranking_of(models[0].fit_).top(0, 8))


def test_the_head_says_what_was_fitted_and_how_much_it_explains(page, models, counts):
    head = text_of(page).split("<nav")[0]
    assert "3 factors at c = 1 and c = ∞." in head
    shares = [f"{deviance_explained(model, counts):.1%}" for model in models]
    assert f"Both fits converged. They explain {' and '.join(shares)} of the deviance of the" in head


def test_progress_of_all_that_takes_long(models, counts, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(checks, "LOG_EVERY", 0.0)
    with checks.logged():
        write_report(tmp_path / "r.html", models[0], counts=counts)
    told = {line.split(":")[0] for line in capsys.readouterr().err.splitlines()}
    assert told == {"markers", "evidence", "deviance explained", "residuals"}


def test_without_counts_the_features_are_the_same(models, about, tmp_path):
    text = write_report(
        tmp_path / "without.html", models[0], feature_names=about["feature_names"]
    ).read_text()
    ranking = ranking_of(models[0].fit_)
    for k, (name, change, rest) in enumerate(first_features(text, 0)):
        j = about["feature_names"].index(name)
        assert j == ranking.top(k, 1)[0]
        assert change == ranking.log2_fold_change[j, k]
        assert " to " not in rest
    assert "significantly" not in text


def test_a_factor_of_all_samples_shows_what_it_is_made_of(tmp_path):
    noise = np.random.default_rng(0).poisson(2.0, (60, 12))
    model = Log1pNMF(1, tol=1e-5, random_state=0).fit(noise)  # all samples have it: nothing rises with it
    text = write_report(tmp_path / "noise.html", model, counts=noise).read_text()
    listed = first_features(text, 0)
    assert len(listed) == 1
    assert "significantly with it" not in text
    assert listed[0][0] == str(np.argmax(noise.sum(axis=0)))


# ---------------------------------------------------------------- words


def test_figures_of_the_comparison():
    eye = np.eye(3).repeat(10, axis=0)
    even = np.full((30, 3), 0.5) + 0.5 * eye  # every sample has all factors
    factors = np.random.default_rng(1).dirichlet(np.ones(8), size=(2, 3))  # all factors carry as much
    shared, clusters = fit_of(even, factors[0].T, c=1.0), fit_of(eye, factors[1].T, c=np.inf)
    result = compare([shared, clusters], groups=Groups.of(np.repeat(["a", "b", "c"], 10)))
    figure = {one.name: (one.finite, one.additive) for one in result.measures}
    assert figure["Groups that use a factor"] == (3.0, 1.0)
    assert figure["Factors used by one group"] == (0, 3)
    assert figure["Strongest factor predicts the group"] == (1.0, 1.0)
    np.testing.assert_allclose(figure["Share of the strongest factor"], (0.5, 1.0))
    np.testing.assert_allclose(figure["Groups per factor"], (np.exp(1.5 * np.log(2)), 1.0))
    assert [(a, b) for a, b, _ in result.pairs] == [(0, 0), (1, 1), (2, 2)]
    assert "Samples mix more factors at c = 1 than at c = ∞" in result.headline


def test_early_stopping_is_said(tmp_path, page, counts):
    with pytest.warns(Warning, match="not converged"):
        stopped_early = Log1pNMF(3, likelihood="exact", tol=1e-12, max_iter=3, init="rank1").fit(counts)
    assert "stopped early" not in text_of(page)  # converged fits
    text = text_of(write_report(tmp_path / "r.html", stopped_early))
    assert "c = 1: not converged after max_iter=3 iterations" in text
    assert "NO: stopped early" in text
    assert "Not converged: c = 1. See the notes." in text


def test_reproducing_call_gives_the_model(page, models, counts):
    text = text_of(page)
    assert "(n_components=3, likelihood='adaptive', init='nndsvd', tol=1e-07)" in text
    assert "A New Family of Poisson" in text
    assert "log1pnmf fit '<script>alert(6)</script>'" in text
    call = document._call(models[1].fit_)
    again = eval(call, {"Log1pNMF": Log1pNMF, "counts": counts})
    np.testing.assert_array_equal(again.components_, models[1].components_)
    assert "l1='auto'" in document._call(replace(models[1].fit_, messages=("l1='auto' chose 2, of 0, 2",)))


# ---------------------------------------------------------------- less to go by


def test_one_model_without_groups_names_or_counts(tmp_path, models, embedded):
    path = models[0].report(tmp_path / "one.html")
    data, text = embedded(path), text_of(path)
    assert len(data["models"]) == 1
    assert data["spans"] == [["", 0, 90]]
    assert "sample 17" in data["names"]
    assert "Deviance explained" not in text
    assert "against" not in text.split("Factors")[0]


def test_more_samples_or_groups_than_are_drawn(tmp_path, models, about, embedded, monkeypatch):
    path = write_report(tmp_path / "r.html", models, groupby=[f"group {i:02}" for i in range(90)])
    sizes = [stop - start for _, start, stop in embedded(path)["spans"]]
    assert sizes == [1] * (MOST_GROUPS - 1) + [90 - MOST_GROUPS + 1]
    assert f"The {MOST_GROUPS - 1} largest of 90 groups are shown one by one" in text_of(path)
    monkeypatch.setattr(structure, "MOST_SAMPLES", 30)
    path = write_report(tmp_path / "part.html", models, **about)
    data = embedded(path)
    assert len(data["names"]) == 30
    assert len(data["spans"]) == 3
    assert len(data["models"][0]["loadings"]) == 90
    assert "30 of 90 samples, a part of every group" in text_of(path)


def test_numbers_are_cut_into_ranges(models, tmp_path):
    values = np.arange(90.0)[::-1].copy()
    values[7] = np.nan
    groups, cut = groups_of(models[0], values, 90)
    assert cut
    *names, missing = groups.names
    assert missing == "NA"
    assert [float(name.split(" to ")[0]) for name in names] == sorted(
        float(name.split(" to ")[0]) for name in names
    )
    for code, name in enumerate(names):
        low, high = map(float, name.split(" to "))
        inside = values[groups.codes == code]
        assert low - 0.5 <= inside.min() <= inside.max() <= high + 0.5
        assert 20 <= len(inside) <= 24
    text = text_of(write_report(tmp_path / "r.html", models, groupby=values, group_name="age"))
    assert "age holds numbers: its groups are four ranges" in text


@pytest.mark.filterwarnings("ignore:n_components=:UserWarning")
def test_factors_without_loadings(tmp_path):
    """More factors than the data can feed: some are empty, and the report says so instead of failing."""
    few = np.array([[1, 0, 0, 2], [2, 0, 0, 4], [1, 0, 0, 2]])
    with pytest.warns(UserWarning, match="cannot determine so many"):
        model = Log1pNMF(5, c=np.inf, random_state=0, max_iter=500, tol=1e-4).fit(few)
    path = write_report(tmp_path / "few.html", model, counts=few, groupby=["a", "a", "b"])
    assert "Features without any count" in text_of(path)


# ---------------------------------------------------------------- the file


def test_nothing_hostile_becomes_a_tag_and_nothing_is_loaded(reader, page):
    scripts = [attributes for tag, attributes in reader.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "structure-data"}, {}]
    assert not {tag for tag, _ in reader.tags} & {"img", "iframe", "object", "embed", "b"}
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
    assert page.read_text(encoding="utf-8").count("</script>") == 2
    for tag, attributes in reader.tags:
        for name in ("src", "href", "action", "data", "poster"):
            value = attributes.get(name, "#")
            assert value.startswith("#") or value == "data:,", (tag, name, value)
    policy = next(a["content"] for tag, a in reader.tags if tag == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy


def test_same_arguments_same_bytes_and_failure_leaves_the_old_report(tmp_path, page, models, about, counts):
    path = write_report(tmp_path / "report.html", models, counts=counts, **about)
    assert path.read_bytes() == page.read_bytes()
    with pytest.raises(ValueError, match="one label"):
        write_report(path, models, groupby=["a"])
    assert path.read_bytes() == page.read_bytes()
    assert list(tmp_path.iterdir()) == [path]


ONE = Log1pNMF(1).fit([[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"fits": []}, ValueError, "there are no fits"),
        ({"fits": [ONE, Log1pNMF(1).fit([[1, 2]])]}, ValueError, "same data"),
        ({"fits": [Log1pNMF(2)]}, NotFittedError, "not fitted"),
        ({"fits": [3]}, TypeError, "got int"),
        ({"fits": ["no-model.npz"]}, FileNotFoundError, "no-model.npz"),
        ({"groupby": ["a"]}, ValueError, "one label for each of the 90 samples, got 1"),
        ({"groupby": "type"}, ValueError, "names a column of adata.obs, but the source is a Log1pNMF"),
        ({"counts": [[1, 2]]}, ValueError, "the counts have 2 features, but the fit has 40"),
        ({"counts": np.ones((2, 40))}, ValueError, "the fit is of 90 samples, got counts of 2"),
        ({"feature_names": ["a"]}, ValueError, "one name for each"),
        ({"notes": "one"}, TypeError, "sequence of strings"),
    ],
)
def test_refusals(tmp_path, models, change, error, message):
    arguments = {"fits": models, **change}
    with pytest.raises(error, match=message):
        write_report(tmp_path / "r.html", arguments.pop("fits"), **arguments)
    assert list(tmp_path.iterdir()) == []


def test_anndata_has_maps_of_sections_and_factors(tmp_path, counts, embedded, monkeypatch):
    from log1pnmf import tl

    rng = np.random.default_rng(0)
    adata = anndata.AnnData(counts, obsm={"X_umap": rng.random((90, 2)), "spatial": rng.random((90, 2))})
    tl.log1p_nmf(adata, 3, init="nndsvd", tol=1e-3, n_jobs=1)
    adata.obs["section"] = np.repeat(["<i>", "B1", "C1"], 30)
    monkeypatch.setattr("log1pnmf.report.figures.MOST_SECTIONS", 2)
    path = write_report(tmp_path / "maps.html", adata, groupby="section")
    assert [span[0] for span in embedded(path)["spans"]] == ["<i>", "B1", "C1"]
    text = path.read_text(encoding="utf-8")
    assert "Mean loading by section" in text
    panels = re.findall(r'<svg viewBox[^>]*aria-label="([^"]*)">(.*?)</svg>', text)
    on_umap = [("UMAP: dominant factor", 90), *((f"UMAP: k{k}", 90) for k in range(3))]
    sections = [("In space: &lt;i&gt;", 30), ("In space: B1", 30)]
    assert [(name, paths.count("h0")) for name, paths in panels] == on_umap + sections
    assert "In space: 2 of 3 sections" in text
    largest = dominant_factor(adata)
    drawn = [path.count("h0") for path in re.findall(r'd="([^"]*)"', panels[0][1])]
    assert sorted(drawn) == sorted(np.unique(largest.astype(str), return_counts=True)[1])
    pixels = rng.random((50, 40, 4))
    scales = {"tissue_lowres_scalef": 40.0, "spot_diameter_fullres": 0.1}
    adata.uns["spatial"] = {"B1": {"images": {"lowres": pixels}, "scalefactors": scales}}
    text = write_report(path, adata, groupby="section").read_text(encoding="utf-8")
    ((png, *box),) = re.findall(
        r'"data:image/png;base64,([^"]*)" x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', text
    )
    shown = imread(io.BytesIO(base64.b64decode(png)))
    spots = adata.obsm["spatial"][30:60]
    left, top = np.maximum(np.floor(40.0 * (spots.min(axis=0) - 0.05)), 0).astype(int)
    there = pixels[top : top + len(shown), left : left + shown.shape[1], :3]
    np.testing.assert_allclose(shown, there, atol=0.5 / 255 + 1e-6)
    scale = 400.0 / (np.ptp(spots, axis=0) + 0.1).max()
    corner = scale * (np.array([left, top]) / 40.0 - spots.min(axis=0) + 0.05)
    size = scale * np.array(shown.shape[1::-1]) / 40.0
    np.testing.assert_allclose([float(number) for number in box], [*corner, *size], atol=0.01)
    adata.obsm["X_umap"][0] = np.nan
    assert "UMAP" not in write_report(tmp_path / "maps.html", adata).read_text(encoding="utf-8")


def test_numbers_and_words():
    assert words.keep_together("at c = 1") == "at c\xa0=\xa01"
    assert [checks.joined("abcd", most) for most in (4, 2)] == ["a, b, c and d", "a, b and 2 more"]
    assert [*map(words.percent, (0.1808, 0.00042, 0.0, 0.9999))] == ["18.1%", "0.042%", "0%", "99.99%"]
    assert [*map(words.decimal, (0.4567, np.nan))] == ["0.46", "–"]
    assert [*map(words.alike, ([5.25, 0.5], [1930.0, 32.2]))] == [["5.25", "0.50"], ["1,930", "32"]]
    assert [*map(words.significant, (12345.6, 0.012345, 1.2e-7))] == ["12,346", "0.0123", "1.2e-07"]
    assert served_groups(np.array([0.2, 0.9, 0.5]), ("a", "b", "c")) == ["b", "c"]


# ---------- charts that the report draws itself


def test_histogram_bars_cover_all_values():
    chart = histogram(np.array([0.5, 1.0, 1.0, 2.0, 0.0]), label="", x_title="", n_bins=3)
    heights = [height for *_, height in chart.bars]
    assert len(heights) == 3
    np.testing.assert_allclose(np.array(heights) / min(heights), [1, 2, 1], rtol=1e-2)
    assert [text for _, text in chart.x_ticks] == ["0.5", "1", "2"]
    assert histogram(np.ones(4), label="", x_title="") is None


def test_log_curve_is_straight_where_the_values_fall_by_a_factor():
    x = np.arange(5.0)
    texts = {"likelihood": "exact", "label": "", "y_title": ""}
    chart = log_curve(x, 10.0**-x, level=(0.01, "tol"), **texts)
    points = np.array([point.split(",") for point in chart.lines[0][2][1:].split("L")], dtype=float)
    np.testing.assert_allclose(
        np.diff(points, axis=0), np.diff(points, axis=0)[:1].repeat(4, axis=0), atol=0.02
    )
    assert chart.level[0] == points[2, 1]
    assert log_curve(x[:1], x[:1], **texts) is None
