"""The demo, as a newcomer runs it."""

import subprocess
import sys
from dataclasses import replace

import pytest

from log1pnmf.cli import commands, main
from log1pnmf.datasets import pancreas


@pytest.mark.slow
def test_the_report_and_the_markers_of_both_fits(tmp_path):
    command = [sys.executable, "-m", "log1pnmf", "demo"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    report = tmp_path / "demo-out" / "run" / "report.html"
    assert "demo-out/run/report.html" in done.stdout
    text = report.read_text(encoding="utf-8").replace("\xa0", " ")
    assert "Samples mix more factors at c = 1 than at c = ∞" in text
    assert report.stat().st_size < 3e6
    for gene in ("INS", "GCG", "SST", "PRSS2"):  # beta, alpha, delta, acinar
        assert done.stdout.count(gene) >= 2
    assert "converged" in done.stdout
    assert "not converged" not in done.stdout


def test_quickly_and_where_it_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("log1pnmf.report.sections.LARGEST", 0.0)  # no evidence, which takes more fits
    whole = pancreas()
    few = replace(
        whole,
        counts=whole.counts[::20, ::10],
        sample_labels=whole.sample_labels[::20],
        feature_names=whole.feature_names[::10],
    )
    folder = tmp_path / "deep" / "folder"
    for _ in range(2):  # the second takes the place of the first
        assert commands.run_demo(folder, few, "max_iter=2", "init=rank1") == 0
        assert "not converged" in capsys.readouterr().out
    assert "stopped early" in (folder / "run" / "report.html").read_text(encoding="utf-8")
    assert main(["markers", str(folder / "run"), "-c", "1", "--jobs", "1"]) == 0  # as the demo suggests
