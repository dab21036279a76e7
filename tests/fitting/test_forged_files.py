"""Files made by someone else, with checksums that match: they are used as they are, or refused in one way."""

import os
import warnings

import numpy as np
import pytest
from tests.fuzz.damage import VALUES, changed, places, strange

from log1pnmf import Log1pNMF, fit_log1p_nmf
from log1pnmf._common.archive import making_whole, read_archive, write_archive
from log1pnmf._common.checks import random_from_parts, random_parts
from log1pnmf.fitting import checkpoint

rng = np.random.default_rng(0)
Y = rng.poisson(rng.gamma(0.5, 2.0, size=(9, 2)) @ rng.gamma(0.5, size=(2, 7)) + 0.1)
OPTIONS = {"n_components": 2, "random_state": 0, "n_jobs": 1, "max_iter": 6, "tol": 1e-12}
CHECKPOINT = {**OPTIONS, "c": 0.5, "likelihood": "adaptive", "zeros_tol": 1e-3, "n_init": 2}


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch):
    """Hundreds of small files need not survive a power failure."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def ignored(work, *args, **options):
    """Do it without warnings; NumPy's too."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return work(*args, **options)


def forgeries(path, sample=1):
    """Files that differ in one thing from a good one; every so many of them."""
    arrays, metadata = read_archive(path)
    for what, other in strange(metadata, sample, ("arrays", "format", "format_version", "kind")):
        yield what, arrays, other
    for name in arrays:
        yield f"no {name}", {one: values for one, values in arrays.items() if one != name}, metadata
    for what, others in strange(arrays, sample):
        yield what, others, metadata


def used_or_refused(path, use, sample=1):
    """Use every forgery; all errors are a ValueError. Return how many were used, and how many refused."""
    outcomes = {"used": 0, "refused": 0}
    for what, arrays, metadata in forgeries(path, sample):
        write_archive(path, arrays, metadata)
        try:
            ignored(use, path)
        except ValueError:
            outcomes["refused"] += 1
        except BaseException as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        else:
            outcomes["used"] += 1
    return outcomes


def use_model(path):
    model = Log1pNMF.load(path)
    assert (model.n_jobs, model.engine, model.verbose) == (None, "auto", None)
    model.set_params(n_jobs=1, max_iter=2, n_init=1)
    model.transform(Y, size_factors="none")
    model.score(Y, size_factors="none")
    model.summary()
    model.set_params(init=model.fit_).fit(Y)


def test_forged_models(tmp_path):
    path = tmp_path / "model"
    ignored(Log1pNMF(**OPTIONS, size_factors=np.linspace(0.5, 2, 9), c=2.0).fit, Y).save(path)
    outcomes = used_or_refused(path, use_model, sample=19)
    assert outcomes["used"] >= 8
    assert outcomes["refused"] >= 35


def test_a_file_decides_nothing_about_threads_paths_and_engines(tmp_path):
    path, victim = tmp_path / "model", tmp_path / "victim"
    ignored(Log1pNMF(**OPTIONS).fit, Y).save(path)
    arrays, metadata = read_archive(path)
    wanted = {"n_jobs": 100_000, "engine": "torch", "verbose": 3}
    own = {**wanted, "checkpoint": str(victim), "callbacks": ["x"]}
    for group in ("settings", "asked"):
        write_archive(path, arrays, {**metadata, group: {**metadata[group], **own}})
        with pytest.raises(ValueError, match="holds a fit that is incomplete"):
            Log1pNMF.load(path)
    write_archive(path, {**arrays, "factors": arrays["factors"][:, :1]}, metadata)
    with pytest.raises(ValueError, match=r"model holds .*factors must be .*got float64 of shape \(7, 1\)"):
        Log1pNMF.load(path)
    named = {group: {**metadata[group], "engine": "torch"} for group in ("settings", "asked")}
    write_archive(path, arrays, {**metadata, **own, **named})
    model = Log1pNMF.load(path)
    plain = Log1pNMF()
    for name in wanted:
        assert getattr(model, name) == getattr(plain, name)
    ignored(model.fit, Y)
    assert not victim.exists()


def test_forged_checkpoints(tmp_path):
    path, seen = tmp_path / "checkpoint", []
    stop = [lambda iteration: seen.append(iteration) or len(seen) > 17]
    ignored(fit_log1p_nmf, Y, checkpoint=path, callbacks=stop, **CHECKPOINT)
    assert read_archive(path)[1]["best"] is not None  # in the second start
    outcomes = used_or_refused(path, lambda path: fit_log1p_nmf(Y, resume=path, **CHECKPOINT), sample=51)
    assert outcomes["used"] >= 3
    assert outcomes["refused"] >= 20


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (
            {"noise": "nb"},
            ("noise.dispersion", "noise.prior.centre", "noise.prior.freedom", "noise.prior.level"),
        ),
        ({"size_factors": "fit"}, ("size_factors",)),
    ],
)
def test_forged_numbers_in_a_checkpoint_are_refused(tmp_path, options, names):
    path, stop = tmp_path / "state", [lambda iteration: iteration.index == 8]
    counts = np.random.default_rng(1).negative_binomial(2, 0.4, (16, 12))
    fit_log1p_nmf(counts, 2, checkpoint=path, callbacks=stop, init="nndsvd", tol=1e-9, **options)
    arrays, metadata = read_archive(path, kind="checkpoint")
    forgeries = [({**arrays, f"last.{name}": -np.nan * arrays[f"last.{name}"]}, metadata) for name in names]
    if "noise" in options:
        names = (*names, "spread must be positive")
        forgeries.append((arrays, changed(metadata, ("last", "noise", "prior", "spread"), np.nan)))
    for name, (others, about) in zip(names, forgeries, strict=True):
        write_archive(path, others, about)
        with pytest.raises(ValueError, match=name.split(".")[-1]):
            checkpoint.load_checkpoint(path)


@pytest.mark.parametrize("bits", [np.random.MT19937, np.random.Philox])
def test_forged_random_numbers(bits):
    parts, outcomes = random_parts(np.random.Generator(bits(0))), {"used": 0, "refused": 0}
    more = ({"array": ["a"], "dtype": "S100000000"}, {"array": [1], "dtype": "u8"})
    for place in places(parts):
        for value in (..., *VALUES, *more):
            try:
                with making_whole("it", "start again"):
                    rng = random_from_parts(changed(parts, place, value))
            except ValueError:
                outcomes["refused"] += 1
            else:
                outcomes["used"] += 1
                assert 0.0 <= rng.random(5).max() < 1.0
    assert outcomes["refused"] > 16
    assert outcomes["used"] > 0


MAKERS = {
    "text": lambda path: path.write_text("a,b\n1,2\n"),
    "empty": lambda path: path.touch(),
    "npz": lambda path: [np.savez(f"{path}.npz", metadata=np.zeros(3)), os.rename(f"{path}.npz", path)],
    "model": lambda path: ignored(Log1pNMF(**OPTIONS).fit, Y).save(path),
    "fifo": os.mkfifo,
}


@pytest.mark.parametrize("make", MAKERS)
def test_a_checkpoint_is_only_written_over_a_checkpoint(tmp_path, make):
    path, worked = tmp_path / "mydata.csv", []
    MAKERS[make](path)
    before = None if make == "fifo" else path.read_bytes()
    with pytest.raises(FileExistsError, match=r"mydata.csv, but the file there is not a checkpoint"):
        fit_log1p_nmf(Y, checkpoint=path, callbacks=[worked.append], **OPTIONS)
    assert worked == []
    assert before is None or path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["mydata.csv"]


def test_what_is_put_there_during_the_fit_stays(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"

    def put(iteration):
        if iteration.index == 3:
            path.write_text("mine")

    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    with pytest.warns(RuntimeWarning, match="checkpoint could not be written.*is not a checkpoint"):
        fit_log1p_nmf(Y, 2, checkpoint=path, callbacks=[put], random_state=0, n_jobs=1, tol=1e-9)
    assert path.read_text() == "mine"
    path.unlink()
    for _ in range(2):  # over nothing, and over a checkpoint
        ignored(fit_log1p_nmf, Y, checkpoint=path, **OPTIONS)
    assert read_archive(path)[1]["kind"] == "checkpoint"


def test_files_that_cannot_be(tmp_path):
    (tmp_path / "foreign").write_bytes(b"no")
    ignored(fit_log1p_nmf, Y, **OPTIONS).save(tmp_path / "fit")
    write_archive(tmp_path / "part", {}, {"kind": "checkpoint"})
    for how, error, message in (
        ({"resume": tmp_path / "none"}, FileNotFoundError, r"resume is .*none, but there is no such file"),
        ({"checkpoint": tmp_path / "none" / "file"}, FileNotFoundError, r"checkpoint is .* no folder"),
        ({"resume": tmp_path / "foreign"}, ValueError, "foreign is damaged"),
        ({"resume": tmp_path / "fit"}, ValueError, "holds a fit, not a checkpoint"),
        ({"resume": tmp_path / "part"}, ValueError, "holds a checkpoint that is incomplete"),
    ):
        with pytest.raises(error, match=message):
            fit_log1p_nmf(Y, **OPTIONS, **how)
