"""Tables and gene sets on the command line."""

import numpy as np
import pandas as pd
import pytest

from log1pnmf.cli import main
from log1pnmf.cli.run_folder import RunFolder


@pytest.fixture
def counts(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.poisson(2.0, (20, 9)), [f"s{i}" for i in range(20)], [f"g{j}" for j in range(9)])
    frame.to_csv(tmp_path / "counts.csv")
    return frame


def test_files_of_what_is_known(counts, tmp_path, capsys):
    design = pd.DataFrame({"everyone": 1.0, "dose": np.linspace(0, 0.5, 20)}, counts.index)[::-1]
    design.to_csv(tmp_path / "design.csv")
    pd.DataFrame({"ambient": np.linspace(0.1, 1, 9)}, counts.columns).to_csv(tmp_path / "ambient.csv")
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
