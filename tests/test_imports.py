"""Imports point one way, and importing the package stays light."""

import ast
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import log1pnmf

PACKAGE = Path(log1pnmf.__file__).parent

# From the bottom to the top: a module may import from lines above its own, and from none below.
LAYERS = [
    ["rows", "datasets.made_up"],
    [
        "arrays",
        "link",
        "sparse_rows",
        "factorial",
        "datasets",
        "version",
        "untrusted",
        "optional",
        "keys",
        "arrange",
        "colors",
        "_core",
    ],
    ["geometry", "approximation", "compress", "persist", "gate.names"],
    ["gate.hdf5", "gate.zarr"],
    ["gate.store"],
    ["gate"],
    ["counts"],
    ["loss"],
    ["problem"],
    ["engines.base"],
    ["engines.native", "engines.reference", "engines.torch_rows", "engines.torch_counts"],
    ["engines.torch_terms"],
    ["engines.torch_dense", "engines.triton_terms"],
    ["engines.torch"],
    ["streaming.chunks"],
    ["streaming.opening"],
    ["streaming.survey"],
    ["streaming.problem"],
    ["streaming.work"],
    ["streaming.step", "streaming.cluster", "streaming.progress"],
    ["streaming.runners"],
    ["streaming.engine"],
    ["engines.registry"],
    ["solver.iteration", "solver.extrapolate"],
    ["solver.alternate", "solver.stopping", "solver.callbacks", "solver.project"],
    ["initialize"],
    ["streaming.start"],
    ["settings", "randomness", "environment"],
    ["result"],
    ["exchange"],
    ["files.table", "files.whole", "files.cells", "files.sink"],
    ["files.annotated", "files.arrays", "files.text", "files.filters"],
    ["files.market"],
    ["files.tenx"],
    ["files.read"],
    ["files.write"],
    ["files.stream"],
    ["files"],
    ["simulate"],
    ["runs", "splitting"],
    ["checkpoint"],
    ["fitting"],
    ["features", "readout", "topics", "certificate"],
    ["continuation", "new_samples", "summary"],
    ["saving"],
    ["fitted"],
    ["estimator", "decomposition", "metrics", "heldout"],
    ["diagnostics", "markers.regression", "markers.shrinkage"],
    ["markers.inference"],
    ["markers.table"],
    ["markers.find"],
    ["sweep", "stability"],
    ["select.grid", "select.folding"],
    ["select.paths"],
    ["select.selection"],
    ["select.run"],
    ["pl.canvas", "pl.raster"],
    ["pl.labels"],
    ["pl.memberships", "pl.genes", "pl.course", "pl.markers", "pl.diagnostics"],
    ["pl.comparison", "pl.selection"],
    ["tl.inputs"],
    ["tl.store"],
    ["tl.fit", "tl.project", "tl.markers"],
    ["report.words", "report.figures"],
    ["report.subject", "report.verdict"],
    ["report.evidence"],
    ["report.data", "report.fits", "report.misfit", "report.factors", "report.structure"],
    ["report.comparison"],
    ["report.document"],
    ["run_folder"],
    ["run_writer"],
    ["demo"],
    ["cli.console", "cli.signals", "cli.options", "cli.progress", "cli.reporting", "cli.annotate"],
    ["cli.inputs"],
    ["cli.streamed"],
    ["cli.running", "cli.info"],
    ["cli.convert"],
    ["cli.fit", "cli.sweep", "cli.transform", "cli.report", "cli.simulate", "cli.demo"],
    ["cli.app"],
    ["cli"],
    ["__main__"],
]
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}

# Packages whose __init__ only names or gathers what is inside.
FOLDERS = ("", "engines", "solver", "tl", "pl", "report", "select", "streaming", "markers")


def module_name(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imported(path):
    """Modules of the package that a file imports, as names relative to the package."""
    own = module_name(path).split(".")
    folder = own if path.name == "__init__.py" else own[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "log1pnmf":
                    yield alias.name.partition(".")[2]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = folder[: len(folder) - node.level + 1]
                target = ".".join([*base, *([node.module] if node.module else [])]).strip(".")
            elif (node.module or "").split(".")[0] == "log1pnmf":
                target = node.module.partition(".")[2]
            else:
                continue
            for alias in node.names:
                below = f"{target}.{alias.name}".strip(".")
                yield below if below in LEVEL else target


def files():
    return [path for path in PACKAGE.rglob("*.py") if module_name(path) not in FOLDERS]


def test_every_module_has_its_place():
    assert {module_name(path) for path in files()} == set(LEVEL) - {"_core"}


def test_imports_point_one_way():
    for path in files():
        name = module_name(path)
        for target in imported(path):
            assert LEVEL[target] < LEVEL[name], f"{name} imports {target}, which is not below it"


def test_every_module_is_in_the_architecture():
    page = PACKAGE.parents[1] / "docs" / "architecture.md"
    text = page.read_text()
    for name in LEVEL:
        if name != "_core":
            assert name.split(".")[-1] in text, f"{name} is missing in {page.name}"


def test_import_is_light():
    heavy = ["pandas", "matplotlib", "anndata", "torch", "dask", "tqdm", "mpmath"]
    code = (
        "import sys, scipy.sparse, sklearn.utils.extmath, sklearn.base; before = set(sys.modules); "
        f"import log1pnmf; print(sorted((set(sys.modules) - before) & {set(heavy)}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout


def test_public_names():
    assert set(log1pnmf.__all__) == {
        "ApproximationWarning",
        "Log1pNMF",
        "__version__",
        "datasets",
        "diagnostics",
        "fit_log1p_nmf",
        "markers",
        "metrics",
        "pl",
        "report",
        "select",
        "stability",
        "tl",
    }
    for name in log1pnmf.__all__:
        assert hasattr(log1pnmf, name)


def test_version_is_that_of_the_installation():
    assert log1pnmf.__version__ == importlib.metadata.version("log1pnmf")
    assert re.match(r"\d+\.\d+", log1pnmf.__version__)


def test_without_matplotlib_the_package_can_be_looked_at():
    code = """
import sys, inspect, pydoc
sys.modules["matplotlib"] = None  # importing it fails
import log1pnmf as lp
assert not hasattr(lp, "pl")
assert "Log1pNMF" in dict(inspect.getmembers(lp)) and "pl" not in dict(inspect.getmembers(lp))
assert "fit_log1p_nmf" in pydoc.render_doc(lp)
for use in ("lp.pl.structure", "from log1pnmf import pl", "import log1pnmf.pl"):
    try:
        exec(use)
    except (AttributeError, ImportError) as error:
        print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    attribute, *imports = done.stdout.splitlines()
    assert attribute.startswith("AttributeError log1pnmf.pl cannot be loaded: ")
    assert [one.partition(" ")[0] for one in imports] == ["ImportError", "ImportError"]
    assert all("pip install 'log1pnmf[plot]'" in one for one in (attribute, *imports))
