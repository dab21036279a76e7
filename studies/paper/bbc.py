"""BBC news (K = 10): keywords and structure at c = 0.001 and c = inf, in three kinds of fits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from log1pnmf.analysis.metrics import effective_factors
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit import Fit
from studies.paper.drawing import structures
from studies.paper.faithful import fit_as_in_r, fit_topic_model
from studies.paper.forms import Case, choose_l1, describe
from studies.paper.published import BBC_NAMED, BBC_RARE, BBC_WORDS
from studies.paper.study import Fits, Options, Report, best, run

SEED = 1  # of the paper's script
PENALTIES = (0.3, 1.0)
SMALL = 0.001
SEEDS = {SMALL: (0, 1, 2), math.inf: tuple(range(8))}
NAMES = {SMALL: "c = 0.001", math.inf: "c = inf"}
CATEGORIES = ("business", "entertainment", "politics", "sport", "tech")
LOADED = 0.1  # of the largest loading: what is seen in a structure plot


class Reading:
    """A fit with its factors in the paper's order: each beside the published one it shares most words with.

    Parameters
    ----------
    fit : Fit
    data : AnnData
    """

    def __init__(self, fit: Fit, data: Any) -> None:
        self.words, self.labels, self.c = np.asarray(data.var_names), np.asarray(data.obs["label"]), fit.c
        published = list(BBC_WORDS[fit.c].values())
        top = [set(self._top(fit.factors[:, k], 20)) for k in range(fit.n_components)]
        common = np.array([[len(set(words) & mine) for mine in top] for words in published])
        _, self.order = linear_sum_assignment(common, maximize=True)
        size = fit.loadings.max(axis=0)
        size = np.where(size > 0.0, size, 1.0)
        self.loadings = (fit.loadings / size)[:, self.order]
        self.factors = (fit.factors * size)[:, self.order]
        self.common = dict(zip(BBC_WORDS[fit.c], common[np.arange(len(published)), self.order], strict=True))

    def _top(self, factor: np.ndarray, n: int) -> list[str]:
        return list(self.words[np.argsort(-factor)[:n]])

    def top_words(self, name: str, n: int = 20) -> list[str]:
        """Words with the largest entries in a factor, by the paper's name of it."""
        return self._top(self.factors[:, int(name[1:]) - 1], n)

    def loaded(self, name: str) -> dict[str, float]:
        """Part of every category's articles that load on a factor."""
        loading = self.loadings[:, int(name[1:]) - 1]
        return {label: float((loading[self.labels == label] > LOADED).mean()) for label in CATEGORIES}

    @property
    def named(self) -> list[int]:
        """Words in common with the paper: politics, film, business."""
        return [int(self.common[k]) for k in BBC_NAMED.values()]

    @property
    def memberships(self) -> float:
        """Mean number of factors that an article takes part in."""
        return float(effective_factors(self.loadings).mean())


def make_case(data: Any, fits: Fits, c: float) -> Case:
    """BBC news with the settings of the paper."""
    n_iter, jobs = fits.options.pick(250, 8), fits.options.jobs

    def faithful(counts: Counts, *, size_factors: Any, seed: int) -> Fit:
        if math.isinf(c):
            return fit_topic_model(counts, 10, n_iter=n_iter, tiny=1e-5, size_factors=size_factors, jobs=jobs)
        return fit_as_in_r(counts, 10, c=c, n_iter=n_iter, seed=seed, size_factors=size_factors, jobs=jobs)

    return Case(
        fits,
        Counts.from_any(data.X),
        10,
        c,
        faithful,
        "exact" if c < 1 else "adaptive",
        tol=1e-7,
        rank_one_only=True,
    )


def read(options: Options) -> Any:
    """Read the data; fewer articles in a quick try."""
    data = options.read("bbc_news")
    if options.quick:
        data = data[::5]
        data = data[:, np.asarray(data.X.sum(axis=0)).ravel() >= 5].copy()
    return data


def study(options: Options) -> None:
    """Run the study."""
    report = Report(options, "bbc", "BBC news (K = 10)")
    data = read(options)
    fits = report.fits("bbc")
    cases = {c: make_case(data, fits, c) for c in (SMALL, math.inf)}
    readings = {c: Reading(case.fit_faithful("whole", SEED), data) for c, case in cases.items()}
    for c, reading in readings.items():
        _keywords(report, reading, NAMES[c])
    _structure_claims(report, readings)
    _rare_words(report, data)
    shown = {NAMES[c]: (reading.loadings, reading.factors) for c, reading in readings.items()}
    labels = np.asarray(data.obs["label"])
    report.figure(
        "structure", structures(shown, labels, CATEGORIES), "Faithful fits, factors in the paper's order."
    )
    report.save()  # what there is so far: the rest takes longer
    _forms(report, cases, data, options)
    report.save()


def _keywords(report: Report, reading: Reading, name: str) -> None:
    for topic, k in BBC_NAMED.items():
        report.claim(
            f"{name}, faithful: 20 keywords of the {topic} factor ({k})",
            paper="20 words",
            ours=f"{reading.common[k]} of them",
            agrees=reading.common[k] >= 12,
        )
    total = sum(reading.common.values())
    report.claim(
        f"{name}, faithful: keywords of all ten factors",
        paper="200 words",
        ours=f"{total} of them (" + ", ".join(f"{k} {n}" for k, n in reading.common.items()) + ")",
        agrees=total >= 120,
    )
    rows = [
        {"factor": k, "in common": int(n), "top 20 words": " ".join(reading.top_words(k))}
        for k, n in reading.common.items()
    ]
    report.table(f"words-{'inf' if math.isinf(reading.c) else 'small'}", rows, f"{name}, faithful: keywords.")


def _rare_words(report: Report, data: Any) -> None:
    """How often the first names of the film factor are used at small c."""
    inside = np.asarray(data.obs["label"]) == "entertainment"
    used, elsewhere = (np.asarray(data.X[rows].sum(axis=0)).ravel() for rows in (inside, ~inside))
    for word, rank in (("dicaprio", 317), ("foxx", 162)):
        j = data.var_names.get_loc(word)
        first, last = int((used > used[j]).sum()) + 1, int((used >= used[j]).sum())
        report.claim(
            f"{word} is far from the most used words of entertainment articles, and in no others",
            paper=f"rank {rank}",
            ours=f"ranks {first} to {last} (ties share them); {elsewhere[j]:.0f} times elsewhere",
            agrees=first <= rank <= last and elsewhere[j] == 0,
        )


def _structure_claims(report: Report, readings: dict[float, Reading]) -> None:
    small, infinite = readings[SMALL], readings[math.inf]
    sport = [infinite.loaded(k)["sport"] for k in ("k5", "k7", "k10")]
    first = np.argmax(infinite.loadings[infinite.labels == "sport"], axis=1)
    inside = float(np.isin(first, [4, 6, 9]).mean())
    report.claim(
        "c = inf, faithful: sports articles fall into three clusters (k5 rugby, k7 football, k10 other)",
        paper="three",
        ours=f"{inside:.0%} of sports articles load most on one of the three; on each, above {LOADED}: "
        + ", ".join(f"{part:.0%}" for part in sport),
        agrees=inside > 0.8,
    )
    k5 = small.loaded("k5")
    report.claim(
        "c = 0.001, faithful: almost every sports article loads on k5",
        paper="almost every",
        ours=", ".join(f"{label} {part:.0%}" for label, part in k5.items()),
        agrees=k5["sport"] > 0.9,
    )
    k7 = {c: reading.loaded("k7") for c, reading in readings.items()}
    report.claim(
        "faithful: the football factor k7 is in all five categories at c = 0.001, only in sport at c = inf",
        paper="across all 5",
        ours="c = 0.001: "
        + ", ".join(f"{label} {part:.0%}" for label, part in k7[SMALL].items())
        + "; c = inf: "
        + ", ".join(f"{label} {part:.0%}" for label, part in k7[math.inf].items()),
        agrees=min(k7[SMALL].values()) > 0.1
        and max(v for k, v in k7[math.inf].items() if k != "sport") < 0.1,
    )
    ranks = {
        c: {word: reading.top_words("k2", len(reading.words)).index(word) + 1 for word in BBC_RARE}
        for c, reading in readings.items()
        if all(word in reading.words for word in BBC_RARE)
    }
    if len(ranks) == 2:
        report.claim(
            "faithful: c = 0.001 favours rare proper nouns in the film factor k2",
            paper="dicaprio and foxx in the top 20 at c = 0.001, not at c = inf",
            ours="; ".join(
                f"{NAMES[c]}: " + ", ".join(f"{w} rank {n}" for w, n in rank.items())
                for c, rank in ranks.items()
            ),
            agrees=max(ranks[SMALL].values()) <= 20 < min(ranks[math.inf].values()),
        )
    report.claim(
        "faithful: an article takes part in more factors at c = 0.001 (modular) than at c = inf (clustered)",
        paper="many, against one or two",
        ours=f"{small.memberships:.1f} against {infinite.memberships:.1f} (exponential of the entropy)",
        agrees=small.memberships > 1.5 * infinite.memberships,
    )


# ---------------------------------------------------------------- the three forms


def _forms(report: Report, cases: dict[float, Case], data: Any, options: Options) -> None:
    rows, shown = [], {}
    for c, case in cases.items():
        seeds = options.pick(SEEDS[c], (0,))
        few = seeds if math.isinf(c) else seeds[:1]  # where a fit takes a second or two
        converged = case.fit_converged("whole", seeds)
        chosen = {
            "faithful": (case.fit_faithful("whole", SEED), case.fit_faithful("train", SEED)),
            "converged": (best(converged), best(case.fit_converged("train", few))),
        }
        choice = choose_l1(case, options.pick(PENALTIES, (1.0,)), few)
        caption = f"{NAMES[c]}: penalties on the training part, judged on held-out counts."
        report.table(f"penalties-{'inf' if math.isinf(c) else 'small'}", choice.rows, caption)
        l1, reason = choice.shown(case.heldout(chosen["faithful"][1]))
        chosen[f"sparse, l1 = {l1:g}"] = (
            best(case.fit_sparse("whole", l1, few)),
            best(case.fit_sparse("train", l1, few)),
        )
        report.note(f"{NAMES[c]}: {choice} {reason}")
        for name, (whole, train) in chosen.items():
            reading = Reading(whole, data)
            row = {"c": NAMES[c], **describe(name, whole, case.heldout(train), case.fits)}
            row["words: politics, film, business"] = " ".join(map(str, reading.named))
            row["words of all 200"] = int(sum(reading.common.values()))
            row["memberships"] = reading.memberships
            rows.append(row)
            shown[f"{NAMES[c]}, {name}"] = (reading.loadings, reading.factors)
        _form_claims(report, c, chosen, converged, data)
    report.table("forms", rows, "The same data and model, fitted in three ways.")
    labels = np.asarray(data.obs["label"])
    report.figure(
        "forms", structures(shown, labels, CATEGORIES), "The three fits; factors in the paper's order."
    )


def _form_claims(
    report: Report, c: float, chosen: dict[str, tuple[Fit, Fit]], converged: list[Fit], data: Any
) -> None:
    faithful = chosen["faithful"][0]
    for name, (fit, _) in chosen.items():
        if name == "faithful":
            continue
        reading = Reading(fit, data)
        others = sorted(converged, key=lambda one: -one.log_likelihood) if name == "converged" else []
        spread = "; ".join(
            f"{one.log_likelihood - faithful.log_likelihood:+,.0f}: {Reading(one, data).named}"
            for one in others
        )
        report.claim(
            f"{NAMES[c]}, {name}: the published factors are still there",
            paper="read from a fit stopped after 250 iterations",
            ours=f"politics, film, business: {reading.named} of 20 words; "
            f"log-likelihood {fit.log_likelihood - faithful.log_likelihood:+,.0f} against the faithful fit",
            agrees=min(reading.named) >= 12,
            spread=f"{spread} (log-likelihood and words, by seed)" if spread else "",
        )


if __name__ == "__main__":
    run(study, __doc__)
