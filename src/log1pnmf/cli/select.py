"""``log1pnmf select``: how many factors, which c and which noise, and the folder with the answer.

select.json      options, data and the suggestion
settings.csv     one line for each setting: held-out log-likelihood, its errors, stability
select.png       the same as a picture
selection.npz    everything, for `log1pnmf.analysis.Selection.load` and to go on after a stop
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import fields, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import typer

from log1pnmf._common.archive import claimed, remove, to_tree
from log1pnmf._common.checks import check_choice, check_whole, versions
from log1pnmf.analysis.grid import HOLDOUTS
from log1pnmf.analysis.select import MAX_SAMPLES, N_FOLDS, N_SEEDS
from log1pnmf.analysis.select import select as compare_settings
from log1pnmf.analysis.selection import Selection
from log1pnmf.cli import options as common
from log1pnmf.fitting.fit import c_name
from log1pnmf.fitting.settings import NOISES, Settings

from .console import KEPT, Screen, noted
from .options import Reading, SolverOptions, batches_of, read_filtered, unfolded
from .run_folder import Source, claimed_for_run, write_columns, write_json, write_picture

# ---------- the folder that log1pnmf select leaves

SELECT_RECORD, TABLE, PICTURE, STATE = "select.json", "settings.csv", "select.png", "selection.npz"
SELECT_NAMES = (SELECT_RECORD, TABLE, PICTURE, STATE)
HELD_OUT = (
    "counts: hold out a share of every count; samples: hold out whole samples, which also works for "
    "overdispersed counts."
)


def _as_record(found: Selection) -> dict[str, Any]:
    """Return the result of a comparison as plain values."""
    judgement = found.judgement
    return {
        "suggested": None if judgement.setting is None else judgement.setting.parameters,
        "clear": judgement.clear,
        "best": found.best.parameters,
        "headline": judgement.headline,
        "reasons": list(judgement.reasons),
        "settings": {name: np.asarray(column).tolist() for name, column in found.summary.items()},
    }


@unfolded
def select(
    *,
    file: common.CountFile,
    components: common.Numbers,
    c: common.Shifts = common.DEFAULT_C,
    noise: Annotated[str, common.model("KIND,KIND", f"{common.KIND} or auto; poisson,nb: compare.")] = "auto",
    batch: common.Batch = None,
    reading: Reading,
    solver: SolverOptions,
    holdout: Annotated[str, common.run("WHAT", HELD_OUT)] = HOLDOUTS[0],
    folds: Annotated[int, common.run("N", "Number of folds.")] = N_FOLDS,
    seeds: Annotated[int, common.run("N", "Random starts, to measure stability; 0 skips it.")] = N_SEEDS,
    max_samples: Annotated[int, common.run("N", "Use at most N random samples; 0: all.")] = MAX_SAMPLES,
    resume: Annotated[bool, common.run(None, "Continue a comparison that was stopped.", "--resume")] = False,
    output: common.Folder,
    json: common.Json = False,
    force: common.Force = False,
) -> int:
    """Choose the number of factors, c and the noise.

    Writes a table, a picture and a suggestion with its reasons.

    Ctrl-C keeps the fits so far; repeat the command with --resume to continue.
    """
    screen = Screen(json=json)
    numbers, shifts = common.parse_numbers(components), common.parse_c(c)
    noises = [part.strip() for part in noise.split(",")]
    for one in noises:
        check_choice("--noise", one, NOISES)
    asked = {**solver.parameters(max(numbers)), "n_components": numbers, "c": shifts, "noise": noises}
    asked |= {"holdout": holdout, "n_folds": folds, "n_seeds": seeds, "max_samples": max_samples or None}
    check_choice("--holdout", holdout, HOLDOUTS)
    check_whole("--folds", folds, least=1)
    check_whole("--seeds", seeds, least=0)
    if len(numbers) * len(shifts) * len(noises) < 2:
        raise typer.BadParameter(
            "there is only one setting, so nothing to compare; give several K (-k 2-6,8), several c "
            "(-c 1 -c inf), or --noise poisson,nb"
        )
    if resume and not (output / STATE).exists():
        raise FileNotFoundError(f"{output} holds no comparison to continue; leave out --resume")
    how: Any = {"record": STATE, "otherwise": ", continue it (--resume)"}
    with claimed(output) if resume else claimed_for_run(output, force=force, **how) as folder:
        for name in () if resume else SELECT_NAMES:
            remove(folder / name)
        mask = None if reading.mask_var is None else reading.mask_var.removesuffix(common.ALL)
        table = read_filtered(file, replace(reading, mask_var=mask), screen).table
        batches = batches_of(table, batch)
        record = {
            "command": shlex.join(["log1pnmf", *sys.argv[1:]]),
            "source": to_tree(Source.of(file)),
            "reading": to_tree(reading),
            "options": {**asked, "batch": batch},
            "versions": versions(),
        }
        try:
            with noted() as warned:
                found = compare_settings(
                    table.counts,
                    resume=folder / STATE,
                    batch=batches,
                    **common.with_tables(asked),
                )
        except KeyboardInterrupt:
            if not (folder / STATE).exists():
                raise
            screen.error(f"interrupted: what is done is kept in {output}; the same with --resume goes on")
            return KEPT
        screen.notes(warned)
        table_of_settings = {**found.summary, "c": [c_name(one) for one in found.summary["c"]]}
        problems = screen.attempt(  # all of it is in the state
            {
                SELECT_RECORD: partial(write_json, folder / SELECT_RECORD, {**record, **_as_record(found)}),
                TABLE: partial(write_columns, folder / TABLE, table_of_settings),
                PICTURE: partial(write_picture, folder / PICTURE, "select", found),
            }
        )
        _tell(found, screen)
        screen.wrote(output, f" ({', '.join(name for name in SELECT_NAMES if name not in problems)})")
        for name, why in problems.items():
            screen.error(f"{name} was not written: {why}")
        if (setting := found.judgement.setting) is not None:
            penalty = f" --set l1={setting.l1:g}" if setting.l1 else ""
            kind = f" --noise {setting.noise}" if setting.noise != Settings.noise else ""
            chosen = f"-k {setting.n_components} -c {c_name(setting.c)}{penalty}{kind}"
            read = {one.name: getattr(reading, one.name) for one in fields(reading)} | {"batch": batch}
            for name, value in read.items():
                shown = "" if value is True else f" {shlex.quote(str(value))}"
                chosen += f" --{name.replace('_', '-')}{shown}" if value else ""
            screen.say(f"then: log1pnmf fit {file} {chosen} -o FOLDER")
    screen.result({"output": str(output), **_as_record(found), "finished": found.is_whole})
    if not found.is_whole:
        screen.error(f"interrupted: the same command with --resume goes on in {output}")
        return KEPT
    return 1 if problems else 0


def _tell(found: Selection, screen: Screen) -> None:
    """Print the table and the suggestion."""
    if not screen.json:
        screen.say((f"{'noise':>8}{'K':>4}{'c':>8}{'difference':>14}{'error':>10}{'stability':>11}", "bold"))
        table = found.summary
        for row, setting in enumerate(found.settings):
            mark = "  best" if setting == found.best else ""
            mark += "  simplest within one error" if setting == found.one_se else ""
            screen.say(
                f"{setting.noise:>8}{setting.n_components:>4}{setting.c:>8g}{table['difference'][row]:>14,.0f}"
                f"{table['se_difference'][row]:>10,.0f}{table['stability'][row]:>11.2f}{mark}"
            )
    judgement = found.judgement
    screen.say((judgement.headline, "bold green" if judgement.setting is not None else "bold yellow"))
    for reason in judgement.reasons:
        screen.say(f"  {reason}")
