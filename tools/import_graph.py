"""Who imports whom in src/log1pnmf, read from the code: what tests/test_imports.py checks and what the
documentation draws.

All imports count: at the top of a file, inside functions, for types only, and those by name
(``require("log1pnmf.x")``, ``import_module("log1pnmf.x")``).

    python tools/import_graph.py > imports.svg
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "log1pnmf"
ORDER = "_common < counts < model < engines < fitting < analysis < tl < pl < report < estimator < cli"
"""A room imports from the rooms to its left."""

ROOMS = tuple(ORDER.split(" < "))
BESIDE = {"_core": 0, "datasets": 0, "": len(ROOMS) + 1, "__main__": len(ROOMS) + 2}
"""The compiled core and the data need nothing; ``__init__`` and ``__main__`` may see all."""

BY_NAME = ("require", "import_module", "__import__")


@dataclass(frozen=True)
class Import:
    """`importer` needs `name` of the module `target`; modules are named relative to the package."""

    importer: str
    target: str
    name: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.name or 'all'} of {self.target}"


def room(module: str) -> str:
    return module.partition(".")[0]


def level(module: str) -> int:
    """The place of a module's room in the order."""
    name = room(module)
    return BESIDE[name] if name in BESIDE else ROOMS.index(name) + 1


def module_name(path: Path, package: Path = PACKAGE) -> str:
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def sources(package: Path = PACKAGE) -> dict[str, Path]:
    """The files of the package by the names of their modules."""
    return {module_name(path, package): path for path in sorted(package.rglob("*.py"))}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def all_imports(package: Path = PACKAGE) -> list[Import]:
    files = sources(package)
    known = {*files, "_core"}
    return [one for module, path in files.items() for one in imports_of(module, path, known)]


def imports_of(module: str, path: Path, known: set[str]) -> Iterator[Import]:
    """What one file imports of the package."""
    own = module.split(".") if module else []
    folder = own if path.name == "__init__.py" else own[:-1]
    for node in ast.walk(tree_of(path)):
        for absolute, name in _asked_for(node, folder):
            below = ".".join(part for part in (absolute, name) if part)
            found = (below, "") if below in known else (absolute, name)
            yield Import(module, *found, node.lineno)


def _asked_for(node: ast.AST, folder: list[str]) -> Iterator[tuple[str, str]]:
    """Module and name, relative to the package, of everything that a statement imports of it."""
    if isinstance(node, ast.Import):
        yield from ((inside, "") for alias in node.names if (inside := _inside(alias.name)) is not None)
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            base = folder[: len(folder) - node.level + 1]
            target: str | None = ".".join([*base, *([node.module] if node.module else [])])
        else:
            target = _inside(node.module or "")
        if target is not None:
            yield from ((target, alias.name) for alias in node.names)
    elif isinstance(node, ast.Call) and _function(node) in BY_NAME:
        named = [keyword.value for keyword in node.keywords if keyword.arg in ("name", "module")]
        for given in node.args[:1] or named:
            if isinstance(given, ast.Constant) and (inside := _inside(str(given.value))) is not None:
                yield inside, ""


def _inside(module: str) -> str | None:
    """The name relative to the package, or None for a module of another one."""
    top, _, rest = module.partition(".")
    return rest if top == "log1pnmf" else None


def _function(call: ast.Call) -> str:
    return getattr(call.func, "id", "") or getattr(call.func, "attr", "")


def private_uses(module: str, path: Path, known: set[str]) -> list[Import]:
    """Names with an underscore that a file takes from another room, by import or as an attribute."""
    foreign = [one for one in imports_of(module, path, known) if room(one.target) != room(module)]
    lines = {one.line for one in foreign}
    tree = tree_of(path)
    bound = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and node.lineno in lines
        for alias in node.names
    }
    named = [one for one in foreign if any(map(_private, [one.name, *one.target.split(".")[1:]]))]
    return named + [
        Import(module, ast.unparse(node.value), node.attr, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and _private(node.attr) and ast.unparse(node.value) in bound
    ]


def _private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def circle(edges: Iterable[tuple[str, str]]) -> list[str]:
    """Return modules that import each other in a circle; none where there is no circle."""
    order: TopologicalSorter[str] = TopologicalSorter()
    for one, other in edges:
        order.add(one, other)
    try:
        order.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


# ---------------------------------------------------------------- the picture

CELL, LEFT, TOP = 44, 96, 34
STYLE = (
    "text{font:13px sans-serif;fill:#333;dominant-baseline:central}.n{text-anchor:middle}.r{text-anchor:end}"
    ".c{text-anchor:middle;font-size:11px}"
)


def draw(imports: Iterable[Import]) -> str:
    """A table as SVG: each row says how often a room imports from the rooms below it."""
    counts = Counter((room(one.importer), room(one.target)) for one in imports)
    rows, columns = ROOMS[::-1], ROOMS
    wide, high = LEFT + CELL * len(columns) + 20, TOP + CELL * len(rows) // 2 + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img" '
        f'aria-label="How often each room of the package imports from each other one"><style>{STYLE}</style>',
        f'<rect width="{wide}" height="{high}" fill="#fff"/>',
    ]
    parts += [
        f'<text class="c" x="{LEFT + CELL * (x + 0.5)}" y="{TOP / 2}">{name}</text>'
        for x, name in enumerate(columns)
    ]
    most = max(counts[one, other] for one in rows for other in columns if one != other)
    for y, one in enumerate(rows):
        middle = TOP + CELL / 2 * (y + 0.5)
        parts.append(f'<text class="r" x="{LEFT - 8}" y="{middle}">{one}</text>')
        for x, other in enumerate(columns):
            parts.append(_cell(x, y, counts[one, other], most, own=one == other))
    return "".join([*parts, "</svg>\n"])


def _cell(x: int, y: int, count: int, most: int, *, own: bool) -> str:
    left, top = LEFT + CELL * x, TOP + CELL / 2 * y
    strength = 0.15 + 0.55 * (count / most) ** 0.5 if count and not own else 0
    colour = "#ddd" if own else "#1f77b4"
    box = (
        f'<rect x="{left + 1}" y="{top + 1}" width="{CELL - 2}" height="{CELL / 2 - 2}" rx="3" '
        f'fill="{colour}" fill-opacity="{1 if own else round(max(strength, 0.03), 2)}"/>'
    )
    number = "" if own or not count else str(count)
    return box + f'<text class="n" x="{left + CELL / 2}" y="{top + CELL / 4}">{number}</text>'


if __name__ == "__main__":
    print(draw(all_imports()), end="")
