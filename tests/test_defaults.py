"""Every interface of the package has the same parameters and defaults: those of `Settings`."""

import inspect
from dataclasses import replace

import anndata
import numpy as np
import pytest

import log1pnmf as lp
from log1pnmf.analysis.select import ENOUGH
from log1pnmf.cli import main
from log1pnmf.cli.fit import fit as fit_command
from log1pnmf.cli.fit import sweep as sweep_command
from log1pnmf.cli.options import SETTABLE, parse_c
from log1pnmf.cli.run_folder import RunFolder
from log1pnmf.cli.select import select as select_command
from log1pnmf.fitting.fit_counts import PARAMETERS, default_of

COMMAND = {"components": "n_components", "seed": "random_state", "jobs": "n_jobs"}
"""Options of the command that go by other names."""
FACES = {
    "Log1pNMF": lp.Log1pNMF.__init__,
    "fit_log1p_nmf": lp.fit_log1p_nmf,
    "sweep": lp.sweep,
    "select": lp.select,
    "tl.log1p_nmf": lp.tl.log1p_nmf,
    "tl.sweep": lp.tl.sweep,
    "tl.select": lp.tl.select,
    "the command fit": fit_command,
    "the command sweep": sweep_command,
    "the command select": select_command,
}
Y = np.random.default_rng(0).poisson(1.0, size=(14, 8))


def defaults(face):
    """Defaults by the names of the library."""
    parameters = inspect.signature(FACES[face]).parameters.values()
    given = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
    if "command" not in face:
        return given
    given["c"] = parse_c(given["c"])
    if len(given["c"]) == 1:
        (given["c"],) = given["c"]
    return {COMMAND.get(name, name): value for name, value in given.items()}


@pytest.mark.parametrize("face", FACES)
def test_the_signatures_agree(face):
    shown = {name: value for name, value in defaults(face).items() if name in PARAMETERS}
    if face == "the command sweep":
        assert len(shown.pop("c")) > 2  # the path has a default of its own
    usual = {name: default_of(name) for name in shown}
    if face in ("select", "tl.select"):  # many fits, each as long as is enough to compare them
        usual |= ENOUGH
    usual |= {"noise": "auto"} if "select" in face else {}  # Poisson noise would take the largest K
    assert shown == usual


def test_the_estimator_shows_all_parameters_in_their_order():
    assert list(inspect.signature(lp.Log1pNMF).parameters) == list(PARAMETERS)
    assert lp.Log1pNMF().get_params() == {name: default_of(name) for name in PARAMETERS}


@pytest.mark.parametrize(
    ("command", "others"),
    [(fit_command, {"engine"}), (sweep_command, set()), (select_command, set())],
    ids=["fit", "sweep", "select"],
)
def test_the_command_shows_what_is_asked_for_most(command, others):
    names = {COMMAND.get(name, name) for name in inspect.signature(command).parameters}
    assert names & set(PARAMETERS) == {"n_components", "c", "noise", "random_state", "n_jobs"} | others


def test_every_other_parameter_is_set_by_its_name():
    with_options = {"n_components", "c", "noise", "engine", "random_state", "n_jobs", "verbose"}
    assert set(SETTABLE) == set(PARAMETERS) - with_options | {"fixed_loadings"}


def test_what_nobody_asked_for_is_the_same_everywhere(tmp_path, capsys):
    """Whatever a face does with its parameters: the fits were asked for the same settings."""
    expected = lp.fit_log1p_nmf(Y, 2)
    adata = anndata.AnnData(Y.astype(np.float32))
    lp.tl.log1p_nmf(adata, 2)
    lp.tl.sweep(adata, 2, [1.0])
    np.savez(tmp_path / "y.npz", counts=Y)
    file, quiet = str(tmp_path / "y.npz"), ["--no-report"]
    assert main(["fit", file, "-k", "2", "-o", str(tmp_path / "fit"), *quiet]) == 0
    assert main(["sweep", file, "-k", "2", "-c", "1,inf", "-o", str(tmp_path / "sweep"), *quiet]) == 0
    fits = {
        "Log1pNMF": lp.Log1pNMF(2).fit(Y).fit_,
        "tl.log1p_nmf": lp.as_fit(adata),
        "tl.sweep": lp.as_fit(adata, key="log1p_nmf_c=1"),
        "sweep": lp.sweep(Y, 2, [1.0]).fits[0],
        "the command fit": RunFolder.open(tmp_path / "fit").fit(),
    }
    for face, fit in fits.items():
        assert fit.asked == expected.asked, face
        assert fit.settings == expected.settings, face
        np.testing.assert_array_equal(fit.loadings, expected.loadings, err_msg=face)
    walked = RunFolder.open(tmp_path / "sweep").fit(1.0).asked  # may have started from its neighbour
    assert replace(walked, init=expected.asked.init) == expected.asked
    capsys.readouterr()
