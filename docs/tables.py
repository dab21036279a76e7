"""Make the tables of measurements on the pages: ``python docs/tables.py [NAME ...]`` (``make tables``).

A table is a file docs/_tables/NAME.csv. It begins with lines "# key: value": the `command` that prints it in
Markdown, or that writes it (`file`); which of several printed tables it is (`table`); a pattern of the rows
that are kept (`rows`), and the columns (`columns`; those of the file by default); commit, date and machine of
the last run.
Pages show it by ``{measured} NAME``, README between comments: ``python docs/tables.py --readme`` fills them.
"""

from __future__ import annotations

import csv
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER, README = ROOT / "docs" / "_tables", ROOT / "README.md"
IN_README = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(?=<!-- end of table -->)", re.DOTALL)

Cells = list[list[str]]


@dataclass(frozen=True)
class Table:
    """A table, its first line the names of the columns, and what made it."""

    about: dict[str, str]
    cells: Cells

    @classmethod
    def read(cls, name: str) -> Table:
        lines = (FOLDER / f"{name}.csv").read_text(encoding="utf-8").splitlines()
        comments = [line for line in lines if line.startswith("# ")]
        about = dict(line.removeprefix("# ").split(": ", 1) for line in comments)
        return cls(about, list(csv.reader(lines[len(comments) :])))

    def write(self, name: str) -> None:
        with open(FOLDER / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            file.writelines(f"# {key}: {value}\n" for key, value in self.about.items())
            csv.writer(file, lineterminator="\n").writerows(self.cells)

    def markdown(self) -> str:
        lines = [self.cells[0], ["---"] * len(self.cells[0]), *self.cells[1:]]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def caption(self) -> str:
        return "`{command}`, commit {commit} of {date}; {machine}.".format(**self.about)

    def renewed(self, printed: str) -> Table:
        """The same rows and columns of what the command has printed or written just now."""
        if "file" in self.about:
            with open(ROOT / self.about["file"], encoding="utf-8", newline="") as file:
                found = [[rounded(cell) for cell in line] for line in csv.reader(file)]
        else:
            found = tables(printed)[int(self.about.get("table", 1)) - 1]
        names = self.about["columns"].split("; ") if "columns" in self.about else self.cells[0]
        columns = [found[0].index(name) for name in names]
        wanted = re.compile(self.about.get("rows", ""))
        rows = [line for line in found[1:] if wanted.search(" | ".join(line))]
        cells = [names, *([line[column] for column in columns] for line in rows)]
        return replace(self, about=self.about | here(self.about["command"]), cells=cells)


def tables(text: str) -> list[Cells]:
    """The Markdown tables of a text."""
    found = re.findall(r"(?:^\|.*\|[ ]*\n){2,}", text + "\n", re.MULTILINE)
    split = [[line.strip()[1:-1].split("|") for line in one.splitlines()] for one in found]
    return [[[cell.strip() for cell in line] for line in (lines[0], *lines[2:])] for lines in split]


def rounded(cell: str) -> str:
    """A number of a file with two digits behind the point, a large one with none."""
    if not re.fullmatch(r"-?\d+\.\d+", cell):
        return cell
    return f"{float(cell):,.{0 if abs(float(cell)) >= 1000 else 2}f}"


def here(command: str) -> dict[str, str]:
    """Commit, date and machine."""
    from benchmarks.run import about

    now = about()
    machine = f"{now['processor'].replace('(R)', '')}, {now['kernel']}, {now['cores']} of its cores"
    if "benchmarks.gpu" in command:
        import torch

        machine = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"
    return {"commit": now["commit"], "date": time.strftime("%Y-%m-%d"), "machine": machine}


def fill_readme() -> str:
    """README with the tables that it names."""

    def fill(found: re.Match[str]) -> str:
        table = Table.read(found[2])
        return f"{found[1]}{table.markdown()}\n{table.caption()}\n"

    return IN_README.sub(fill, README.read_text(encoding="utf-8"))


def main(names: list[str]) -> None:
    if names != ["--readme"]:
        chosen = {
            name: Table.read(name) for name in names or sorted(path.stem for path in FOLDER.glob("*.csv"))
        }
        for command in dict.fromkeys(table.about["command"] for table in chosen.values()):
            print(command, flush=True)
            words = [sys.executable, *shlex.split(command)[1:]]
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            for name, table in chosen.items():
                if table.about["command"] == command:
                    table.renewed(done.stdout).write(name)
    README.write_text(fill_readme(), encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(sys.argv[1:])
