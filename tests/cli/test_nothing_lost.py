"""Whatever happens after a fit, the fit is there; whatever happens before, nothing is."""

import signal
from importlib import import_module

import anndata
import pytest

from log1pnmf.cli.run_folder import RunFolder

running = import_module("log1pnmf.cli.fit")


def hidden(folder):
    return [path for path in folder.rglob("*") if path.name.startswith(".")]


def press(monkeypatch, where, how, calls=1):
    """Send a signal when a function is called for the n-th time, before it does anything."""
    module, _, name = where.rpartition(".")
    owner = import_module(f"log1pnmf.{module}")
    original, seen = getattr(owner, name), []

    def pressed(*arguments, **options):
        seen.append(1)
        if len(seen) == calls:
            signal.raise_signal(how)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, pressed)


@pytest.mark.parametrize(
    ("where", "how"), [("cli.fit.read_filtered", signal.SIGINT), ("cli.fit._record", signal.SIGTERM)]
)
def test_before_the_fit_nothing_is_left_and_it_is_said(fit, tmp_path, monkeypatch, where, how):
    press(monkeypatch, where, how)
    done = fit(code=130)
    assert done.err == "error: interrupted: nothing was written\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("where", "how"),
    [
        ("cli.fit.deviance_explained", signal.SIGINT),
        ("cli.run_folder.write_csv", signal.SIGTERM),
        ("cli.fit._tell_fit", signal.SIGINT),
        ("cli.fit._tell", signal.SIGTERM),
    ],
)
def test_a_finished_fit_is_kept(fit, tmp_path, monkeypatch, where, how):
    press(monkeypatch, where, how)
    done = fit("--no-report", code=130)
    run = RunFolder.open(tmp_path / "out")
    assert run.fit(1.0).converged
    assert (tmp_path / "out" / "factors_c=1.csv").exists()
    assert not hidden(tmp_path)
    assert "nothing was written" not in done.err


@pytest.mark.parametrize(
    ("where", "calls"),
    [("solver.extrapolated", 6), ("fit_counts.residual_at", 1), ("fit_counts._certificate", 1)],
)
def test_a_fit_is_kept_in_its_middle_and_before_its_last_figures_are_there(
    fit, tmp_path, monkeypatch, where, calls
):
    press(monkeypatch, f"fitting.{where}", signal.SIGTERM, calls)
    done = fit("--set", "likelihood=chebyshev", "--no-report", code=130)
    assert "the fit so far is kept" in done.out
    run = RunFolder.open(tmp_path / "out")
    assert run.fit(1.0).n_iter > 0
    assert run.record.interrupted


def test_interrupted_report_leaves_the_fits(fit, tmp_path, monkeypatch):
    press(monkeypatch, "cli.fit.report_fits", signal.SIGINT)
    done = fit("-c", "1,inf", code=130)
    assert f"log1pnmf report {tmp_path / 'out'}" in done.err
    run = RunFolder.open(tmp_path / "out")
    assert len(run.fits) == 2
    assert run.record.finished
    assert not (tmp_path / "out" / "report.html").exists()
    assert not hidden(tmp_path)


def test_earlier_fits_survive_an_interrupt_of_a_later_one(fit, tmp_path, monkeypatch):
    press(monkeypatch, "cli.fit.fit_log1p_nmf", signal.SIGTERM, calls=2)
    fit("-c", "1,2,inf", code=130)
    run = RunFolder.open(tmp_path / "out")
    assert [fit.c for fit in run.fits] == [1.0]
    assert run.record.interrupted
    assert not run.record.finished
    assert not hidden(tmp_path)


def test_earlier_fits_survive_the_failure_of_a_later_one(fit, call, tmp_path, monkeypatch):
    original = running.fit_log1p_nmf

    def fail(*arguments, c, **options):
        if c == 2.0:
            raise ArithmeticError("too odd")
        return original(*arguments, c=c, **options)

    monkeypatch.setattr(running, "fit_log1p_nmf", fail)
    done = fit("-c", "1,2,inf", code=1)
    assert "too odd" in done.err
    assert f"kept {tmp_path / 'out'} with c = 1" in done.out
    assert [fit.c for fit in RunFolder.open(tmp_path / "out").fits] == [1.0]
    assert "some fits are missing" in call("info", tmp_path / "out").out
    assert call("report", tmp_path / "out").code == 0


def test_h5ad_that_cannot_be_written_is_told_and_the_rest_is_there(fit, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("log1pnmf.cli.fit.write_anndata", full)
    done = fit("--write-h5ad", tmp_path / "new.h5ad", code=1)
    assert "no room left on the disk" in done.err
    assert done.err.count("\n") == 1
    assert (tmp_path / "out" / "report.html").exists()
    assert not (tmp_path / "new.h5ad").exists()
    assert not hidden(tmp_path)


def test_ctrl_c_in_other_commands_says_so(call, counts_file, tmp_path, monkeypatch):
    press(monkeypatch, "cli.commands.write_table", signal.SIGINT)
    done = call("convert", counts_file, tmp_path / "t.csv")
    assert (done.code, done.err) == (130, "error: interrupted: nothing was written\n")


def test_every_c_has_a_key_of_its_own(fit, tmp_path):
    fit("-c", "1000000,1000001", "--no-report", "--write-h5ad", tmp_path / "new.h5ad")
    adata = anndata.read_h5ad(tmp_path / "new.h5ad")
    keys = {"log1p_nmf_c=1e+06", "log1p_nmf_c=1000001.0"}
    assert {key for key in adata.obsm if "log1p" in key} == keys | {f"{key}_shares" for key in keys}


def test_terminals_are_not_sent_what_files_hold(call, tmp_path):
    """Names, labels and file names with escape sequences are shown, not obeyed."""
    text = "cell,a\x1b[2Jx,b\nx\x1b]0;title\x07,1,2\ny\x9b31m,3,0\n"
    (tmp_path / "n\x1b[31m.csv").write_text(text)
    for arguments in (["info"], ["info", "--json"], ["fit", "-k", 1, "-o", tmp_path / "out", "--no-report"]):
        command, *options = arguments
        done = call(command, tmp_path / "n\x1b[31m.csv", *options)
        assert done.code == 0
        shown = done.out + done.err
        assert not [one for one in shown if one != "\n" and not one.isprintable()], repr(shown)
    missing = call("info", tmp_path / "no\x1b[31m.csv")
    assert "\x1b" not in missing.err
    assert "\\x1b[31m" in missing.err
