"""Checkpoints: a fit that was stopped, interrupted or killed ends in the same bits as one that was not."""

import functools
import math
import os
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from log1pnmf import fit_log1p_nmf
from log1pnmf._common.archive import read_archive, write_archive
from log1pnmf._common.checks import random_from_parts, random_parts
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting import checkpoint
from log1pnmf.fitting.fit import Fit


def simulated(n=40, m=30, k=3, seed=0):
    rng = np.random.default_rng(seed)
    loadings, factors = rng.gamma(0.3, size=(n, k)), rng.gamma(0.3, 3.0, size=(m, k))
    return rng.poisson(loadings @ factors.T + 0.05)


Y = simulated()
QUICK = {"tol": 1e-6, "random_state": 0, "n_jobs": 1, "init": "rank1"}
BATCH = {"batch": np.arange(40) % 3, "init": "nndsvd", "max_iter": 20}
KINDS = {
    "newton": {},
    "coordinate": {"row_solver": "coordinate", "max_iter": 30},
    "adaptive restarts": {"c": 0.5, "likelihood": "adaptive", "zeros_tol": 1e-3, "n_init": 2, "tol": 1e-4},
    "restarts": {"c": math.inf, "init": "random", "n_init": 3, "random_state": np.random.RandomState(7)},
    "adaptive, all visited": {"c": 0.1, "likelihood": "adaptive", "zeros_tol": 1e-9},
    "penalised, given sizes": {"l1": 2.0, "size_factors": np.linspace(0.5, 2.0, 40)},
    "auto": {"init": "auto", "c": math.inf},
    "fitted sizes": {"size_factors": "fit", "init": "nndsvd", "max_iter": 25},
    "known": {"fixed_loadings": {"all": 1.0, "some": np.arange(40) % 2}, "mask": np.arange(30)[None] < 12},
    "given dispersions": {"noise": "nb", "dispersion": np.linspace(0.0, 2.0, 30), "max_iter": 6},
    "dispersions": {"noise": "nb", "init": "random", "n_init": 2, "tol": 1e-4, "max_iter": 20},
    "batches, adaptive": {**BATCH, "likelihood": "adaptive"},
    "batches, dispersions": {**BATCH, "noise": "nb"},
    "batches, streamed": {**BATCH, "engine": "streaming", "max_iter": 6},
    "dispersions, streamed": {"noise": "nb", "engine": "streaming", "likelihood": "adaptive", "max_iter": 14},
}


def fitted(**options):
    """A fit without its warnings; a generator given is left as it was."""
    options = {"n_components": 3, **QUICK, **options}
    if not isinstance(options["random_state"], int):
        options["random_state"] = random_from_parts(random_parts(options["random_state"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return fit_log1p_nmf(options.pop("counts", Y), **options)


def assert_same(one, other):
    """All but the seconds."""
    parts = [fit.to_parts()[0] for fit in (one, other)]
    assert set(parts[0]) == set(parts[1])
    for name, array in parts[0].items():
        if name != "history.seconds":
            np.testing.assert_array_equal(array, parts[1][name], err_msg=name)
            assert array.dtype == parts[1][name].dtype
    assert list(one.history) == list(other.history)
    assert (np.diff(other.history["seconds"]) >= 0).all()
    for name in ("objective", "kkt_residual", "stopped", "n_iter", "messages", "settings"):
        assert getattr(one, name) == getattr(other, name), name
    for name in ("log_likelihood", "approximate_log_likelihood"):
        assert getattr(one, name) == getattr(other, name), name


class StopAt:
    """Stop at the n-th iteration seen, over all phases and starts; remember which ones were restarts."""

    def __init__(self, number=math.inf):
        self.number, self.seen = number, []

    def __call__(self, iteration):
        assert iteration.updated is None
        self.seen.append(iteration)
        return len(self.seen) > self.number


@functools.cache
def cuts(kind):
    """Iterations at which to stop: starts, dropped extrapolations, their neighbours, the end and others."""
    everything = StopAt()
    whole = fitted(callbacks=[everything], **KINDS[kind])
    seen, wanted = everything.seen, {0, 1, len(everything.seen) - 1}
    for number, iteration in enumerate(seen):
        if iteration.restarted or iteration.index == 0 or math.isnan(iteration.relative_change):
            wanted |= {number - 1, number, number + 1}
    wanted |= set(np.random.default_rng(0).integers(len(seen), size=4).tolist())
    wanted = sorted(wanted & set(range(len(seen))))
    return whole, seen, wanted[:: max(1, len(wanted) // 3)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_fit_has_the_same_bits(tmp_path, kind):
    path, (whole, _, wanted) = tmp_path / "checkpoint", cuts(kind)
    for cut in wanted:
        stopped = fitted(callbacks=[StopAt(cut)], checkpoint=path, **KINDS[kind])
        assert stopped.n_iter <= whole.n_iter or KINDS[kind].get("n_init", 1) > 1
        assert_same(whole, fitted(resume=path, **KINDS[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_threads_gives_the_same_bits_and_files_keep_them(tmp_path, kind):
    whole = cuts(kind)[0]
    assert_same(whole, fitted(n_jobs=2, **KINDS[kind]))
    whole.save(tmp_path / "fit.npz")
    loaded = Fit.load(tmp_path / "fit.npz")
    assert_same(whole, loaded)
    assert (loaded.asked, loaded.factor_names, loaded.kinds) == (whole.asked, whole.factor_names, whole.kinds)


def test_a_fit_may_be_stopped_again_and_again_and_a_finished_one_is_returned(tmp_path):
    path, options = tmp_path / "checkpoint", KINDS["adaptive restarts"]
    whole = fitted(**options)
    fitted(callbacks=[StopAt(0)], checkpoint=path, **options)
    for _ in range(200):
        again = fitted(resume=path, checkpoint=path, callbacks=[StopAt(2)], **options)
        if "stopped by a callback" not in " ".join(again.messages):
            break
    assert_same(whole, again)
    assert_same(whole, fitted(resume=path, callbacks=[seen := StopAt()], **options))
    assert seen.seen == []


@pytest.mark.gpu
@pytest.mark.parametrize("cut", [0, 6])
def test_an_adaptive_fit_in_pytorch_may_be_stopped(tmp_path, cut):
    """The zeros to evaluate are on a device, and go through the file."""
    options = {"c": 0.5, "likelihood": "adaptive", "zeros_tol": 1e-3, "engine": "torch", "max_iter": 12}
    path = tmp_path / "checkpoint"
    fitted(callbacks=[StopAt(cut)], checkpoint=path, **options)
    assert_same(fitted(**options), fitted(resume=path, **options))


def test_counts_are_not_read_for_a_checkpoint_that_nobody_wants(monkeypatch):
    monkeypatch.setattr(Counts, "checksum", lambda self: pytest.fail("it costs more than a fit on a card"))
    fitted(max_iter=2)


def test_another_number_of_threads_and_callbacks_may_go_on(begun):
    again = fitted(resume=begun, callbacks=[seen := StopAt()], n_jobs=2)
    np.testing.assert_array_equal(again.loadings, fitted().loadings)
    assert seen.seen[0].index > 2


def test_how_often_it_is_written(tmp_path, monkeypatch):
    path, written = tmp_path / "checkpoint", []

    def note(iteration):
        written.append(read_archive(path)[1]["last"]["index"] if path.exists() else None)

    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    whole = fitted(checkpoint=path, callbacks=[note])
    assert written == whole.history["iteration"].tolist()
    path.unlink()
    written.clear()
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 1e9)
    fitted(checkpoint=path, callbacks=[note])
    assert set(written) == {None}
    assert read_archive(path)[1]["last"]["index"] == whole.n_iter


def test_ctrl_c_writes_a_last_checkpoint(tmp_path):
    path, kind, left = tmp_path / "checkpoint", "adaptive restarts", [5]

    def press(iteration):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    whole = fitted(**KINDS[kind])
    with pytest.warns(RuntimeWarning, match="interrupted after"):
        stopped = fitted(checkpoint=path, callbacks=[press], **KINDS[kind])
    assert not stopped.converged
    assert_same(whole, fitted(resume=path, **KINDS[kind]))


def test_ctrl_c_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    path, calls = tmp_path / "checkpoint", []
    original = os.fsync

    def press(descriptor):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        original(descriptor)

    monkeypatch.setattr(os, "fsync", press)
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    with pytest.warns(RuntimeWarning, match="interrupted after"):
        fitted(checkpoint=path)
    monkeypatch.undo()
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint"]
    assert_same(fitted(), fitted(resume=path))


SWAPPED = Y[[1, 0, *range(2, 40)]]


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A checkpoint of a fit that was stopped."""
    path = tmp_path_factory.mktemp("begun") / "checkpoint"
    fitted(callbacks=[StopAt(2)], checkpoint=path)
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"c": 2.0, "l1": 1.0}, r"c \(settings\) is 1.0 there and 2.0 here; l1 \(settings\) is 0.0 there"),
        ({"n_components": 2, "tol": 1e-3, "max_iter": 10}, "n_components.*max_iter.*tol"),
        ({"random_state": 1}, "random_state"),
        ({"engine": "streaming"}, "engine"),
        ({"likelihood": "chebyshev", "init": "random"}, "likelihood.*init"),
        ({"init": (np.ones((40, 3)), np.ones((30, 3)))}, "init"),
        ({"size_factors": np.ones(40), "batch": np.arange(40) % 3}, "size_factors.*batch"),
        ({"fixed_loadings": np.ones(40)}, "known"),
        ({"counts": Y[:39]}, r"shape \(data\) is \[40, 30\] there and \[39, 30\] here"),
        ({"counts": Y + 1}, "number of non-zeros.*total.*checksum"),
        ({"counts": SWAPPED}, "another fit: checksum"),
    ],
)
def test_another_fit_is_refused(begun, options, message):
    with pytest.raises(
        ValueError, match=rf"resume: .*another fit: .*{message.removeprefix('another fit: ')}"
    ):
        fitted(resume=begun, **options)


@pytest.mark.parametrize(
    ("name", "given", "other"),
    [
        ("init", (np.ones((40, 3)), np.ones((30, 3))), (np.full((40, 3), 0.5), np.ones((30, 3)))),
        ("fixed_loadings", np.ones(40), np.arange(40) % 2),
        ("dispersion", np.full(30, 0.5), np.full(30, 0.6)),
    ],
)
def test_given_arrays_are_compared(tmp_path, name, given, other):
    path, more = tmp_path / "checkpoint", {"noise": "nb"} if name == "dispersion" else {}
    fitted(callbacks=[StopAt(2)], checkpoint=path, **{name: given}, **more)
    shown = "known" if name == "fixed_loadings" else name
    with pytest.raises(ValueError, match=rf"{shown} \(settings\) is 'given, with checksum"):
        fitted(resume=path, **{name: other}, **more)


def test_the_form_of_the_counts_does_not_matter_and_seconds_go_on(begun, tmp_path):
    arrays, metadata = read_archive(begun)
    metadata["seconds"] += 1000.0
    metadata["last"]["seconds"] += 1000.0
    write_archive(tmp_path / "later", arrays, metadata)
    again = fitted(resume=tmp_path / "later", counts=Counts.from_any(Y).to_scipy().tocsc())
    assert_same(fitted(), again)
    assert 1000.0 < again.history["seconds"][-1] < again.seconds < 1100.0


def test_global_state_is_left_alone(tmp_path):
    path, options = tmp_path / "checkpoint", {"init": "random", "tol": 1e-4}
    fit_log1p_nmf(Y, 3, checkpoint=path, callbacks=[StopAt(2)], **options)
    before = random_parts(np.random.mtrand._rand)
    fit_log1p_nmf(Y, 3, resume=path, **options)
    assert random_parts(np.random.mtrand._rand) == before
