"""The demo, as a newcomer runs it."""

import subprocess
import sys
from dataclasses import replace

import pytest

from log1pnmf.cli import commands
from log1pnmf.datasets import pancreas


@pytest.mark.slow
def test_the_report_what_to_look_at_and_the_markers_of_both_fits(tmp_path):
    command = [sys.executable, "-m", "log1pnmf", "demo"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    report = tmp_path / "demo-out" / "report.html"
    assert report.as_uri() in done.stdout
    assert "What to look at" in done.stdout
    assert "Samples mix more factors at c = 1 than at c = ∞" in done.stdout
    assert report.stat().st_size < 3e6
    assert list(report.parent.iterdir()) == [report]
    for gene in ("INS", "GCG", "SST", "PRSS2"):  # beta, alpha, delta, acinar
        assert done.stdout.count(gene) >= 2
    assert "converged" in done.stdout
    assert "not converged" not in done.stdout
    assert done.stderr.count("iterations in") == 2  # not a terminal: a line for each fit
    assert "objective" not in done.stdout


def test_quickly_and_where_it_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("log1pnmf.report.sections.LARGEST", 0.0)  # no evidence, which takes more fits
    whole = pancreas()
    few = replace(
        whole,
        counts=whole.counts[::20, ::10],
        sample_labels=whole.sample_labels[::20],
        feature_names=whole.feature_names[::10],
    )
    report = commands.run_demo(tmp_path / "deep" / "folder", few, max_iter=2)
    assert report == tmp_path / "deep" / "folder" / "report.html"
    printed = capsys.readouterr()
    assert report.as_uri() in printed.out
    assert "What to look at" in printed.out
    assert "not converged" in printed.out
    assert printed.err.count("fitting: ") == 2  # the progress stays out of what is printed
    assert "stopped early" in report.read_text(encoding="utf-8")
