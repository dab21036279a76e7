"""The public names of the package: those that the modules offer that users may import.

docs/reference/api.md lists them, and the tests ask of each that it is documented.
"""

import importlib
from types import ModuleType
from typing import Any

import log1pnmf

ALSO = (
    "log1pnmf.cli.exchange.read_r_list",
    "log1pnmf.cli.exchange.write_r_list",
    "log1pnmf.cli.run_folder.RunFolder",
)
"""Names of the command line's own modules that are of use in Python: folders for R and folders of runs."""


def public_modules() -> dict[str, ModuleType]:
    """The modules by the names under which users know them: ``log1pnmf.callbacks``, wherever it lies."""
    offered = {f"log1pnmf.{name}": getattr(log1pnmf, name) for name in log1pnmf.__all__}
    return {"log1pnmf": log1pnmf} | {
        name: thing for name, thing in offered.items() if isinstance(thing, ModuleType)
    }


def offered_by(module: ModuleType) -> list[str]:
    """What a module without ``__all__`` imports from other modules of the package, to offer it."""
    own = {name: getattr(thing, "__module__", "") for name, thing in vars(module).items()}
    return [name for name, home in own.items() if home.startswith("log1pnmf.") and name[0] != "_"]


def public_names() -> dict[str, Any]:
    """Everything public that is not a module, by its full name."""
    found = {
        f"{module}.{name}": getattr(contents, name)
        for module, contents in public_modules().items()
        for name in getattr(contents, "__all__", None) or offered_by(contents)
        if name != "__version__"
    }
    for name in ALSO:
        module, _, attribute = name.rpartition(".")
        found[name] = getattr(importlib.import_module(module), attribute)
    return {name: thing for name, thing in found.items() if not isinstance(thing, ModuleType)}
