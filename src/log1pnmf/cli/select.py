"""``log1pnmf select``: how many factors, and which c."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from log1pnmf._common.checks import check_choice, check_whole
from log1pnmf.analysis.selection.folding import HOLDOUTS
from log1pnmf.analysis.selection.run import N_FOLDS, N_SEEDS
from log1pnmf.analysis.selection.run import select as compare_settings
from log1pnmf.analysis.selection.selection import Selection
from log1pnmf.fitting.keys import c_name
from log1pnmf.fitting.settings import NOISES, Settings

from . import options as common
from .console import Screen, one_line
from .groups import SolverOptions, unfolded
from .inputs import Reading, read_filtered
from .progress import GridWatch
from .select_folder import SelectFolder, writing_selection
from .signals import KEPT

__all__ = ["select"]


@unfolded
def select(
    *,
    file: common.CountFile,
    components: Annotated[
        str,
        typer.Option(
            "-k",
            "--components",
            metavar="K,K...",
            help="Numbers of factors to compare, such as 1-6,8,10.",
            show_default=False,
        ),
    ],
    output: common.Output,
    c: common.Shifts = common.DEFAULT_C,
    holdout: Annotated[
        str,
        typer.Option(
            "--holdout",
            metavar="WHAT",
            help="counts: hold out a share of every count; samples: hold out whole samples, which also "
            "works for overdispersed counts.",
        ),
    ] = HOLDOUTS[0],
    folds: Annotated[int, typer.Option("--folds", metavar="N", help="Number of folds.")] = N_FOLDS,
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds", metavar="N", help="Random starts of each setting, to measure stability; 0 skips it."
        ),
    ] = N_SEEDS,
    reading: Reading,
    options: SolverOptions,
    noise: Annotated[
        str,
        typer.Option(
            "--noise",
            metavar="KIND,KIND",
            help="Distribution of the counts: poisson, nb (negative binomial), or both to compare them.",
        ),
    ] = Settings.noise,
    batch: common.Batch = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a comparison that was stopped.")] = False,
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
    asked = {**options.parameters(max(numbers)), "n_components": numbers, "c": shifts, "noise": noises}
    asked |= {"holdout": holdout, "n_folds": folds, "n_seeds": seeds}
    check_choice("--holdout", holdout, HOLDOUTS)
    check_whole("--folds", folds, least=1)
    check_whole("--seeds", seeds, least=0)
    if len(numbers) * len(shifts) < 2 and noises in (["poisson"], ["nb"]):
        raise typer.BadParameter(
            "there is only one setting, so nothing to compare; give several K (-k 2-6,8), several c "
            "(-c 1 -c inf), or --noise poisson,nb"
        )
    with writing_selection(output, force=force, resume=resume) as folder:
        table = read_filtered(file, reading, screen).table
        counts, labels = table.counts, None if batch is None else table.labels(batch)
        record = folder.record_of(file, reading, {**asked, "batch": batch})
        try:
            with GridWatch(screen.errors) as watch, warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found = compare_settings(counts, resume=folder.state, on_fit=watch, batch=labels, **asked)
        except KeyboardInterrupt:
            if not folder.state.exists():
                raise
            screen.error(f"interrupted: what is done is kept in {output}; the same with --resume goes on")
            return KEPT
        finished = found.is_whole
        screen.notes([one_line(warning.message) for warning in caught])
        problems = folder.write(found, record)
        _tell(found, screen)
        _tell_places(folder, screen, problems)
        _tell_next(found, file, screen, batch)
    screen.result({"output": str(output), **folder.summary_of(found), "finished": finished})
    if not finished:
        screen.error(f"interrupted: the same command with --resume goes on in {output}")
        return KEPT
    return 1 if problems else 0


def _tell(found: Selection, screen: Screen) -> None:
    """Show the table and what the data say."""
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


def _tell_next(found: Selection, file: Path, screen: Screen, batch: str | None) -> None:
    setting = found.judgement.setting
    if setting is not None:
        penalty = f" --l1 {setting.l1:g}" if setting.l1 else ""
        noise = f" --noise {setting.noise}" if setting.noise != Settings.noise else ""
        column = "" if batch is None else f" --batch {batch}"
        chosen = f"-k {setting.n_components} -c {c_name(setting.c)}{penalty}{noise}{column}"
        screen.say(f"then: log1pnmf fit {file} {chosen} -o FOLDER")


def _tell_places(folder: SelectFolder, screen: Screen, problems: dict[str, str]) -> None:
    there = ", ".join(name for name in folder.names if name not in problems)
    screen.say(("wrote ", "green"), (str(folder.shown), "bold"), f" ({there})")
    for name, why in problems.items():
        screen.error(f"{name} was not written: {why}")
