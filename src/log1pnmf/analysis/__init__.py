"""From a `Fit` and its counts to findings."""

from .batches import BatchFindings, batch_effects, batch_findings, confounded_groups
from .coherence import coherence, exclusivity
from .diagnostics import Diagnostics, diagnose
from .evidence import Evidence, evidence
from .heldout import heldout_by_sample, heldout_log_likelihood, heldout_rows_log_likelihood
from .identity import top_features
from .loading_errors import loading_errors
from .markers import Markers, markers
from .metrics import (
    FactorMatch,
    correlation_matrix,
    deviance_explained,
    dominant_factor,
    effective_factors,
    factor_correlation,
    hoyer,
    log_likelihood,
    match_factors,
    shares,
)
from .perplexity import perplexity
from .scorer import heldout_score
from .selection import Judgement, Selection, Setting, select
from .stability import Relation, Stability, consensus, fit_seeds, relate, stability, stability_table
from .suggest import read_gmt, suggest_names
from .sweep import Sweep, sweep
from .topics import TopicModel, topic_model
from .usage import Usage, usage

__all__ = [
    "BatchFindings",
    "Diagnostics",
    "Evidence",
    "FactorMatch",
    "Judgement",
    "Markers",
    "Relation",
    "Selection",
    "Setting",
    "Stability",
    "Sweep",
    "TopicModel",
    "Usage",
    "batch_effects",
    "batch_findings",
    "coherence",
    "confounded_groups",
    "consensus",
    "correlation_matrix",
    "deviance_explained",
    "diagnose",
    "dominant_factor",
    "effective_factors",
    "evidence",
    "exclusivity",
    "factor_correlation",
    "fit_seeds",
    "heldout_by_sample",
    "heldout_log_likelihood",
    "heldout_rows_log_likelihood",
    "heldout_score",
    "hoyer",
    "loading_errors",
    "log_likelihood",
    "markers",
    "match_factors",
    "perplexity",
    "read_gmt",
    "relate",
    "select",
    "shares",
    "stability",
    "stability_table",
    "suggest_names",
    "sweep",
    "top_features",
    "topic_model",
    "usage",
]
