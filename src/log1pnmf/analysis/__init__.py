"""From a `Fit` and its counts to findings."""

from .batches import BatchFindings, batch_findings, confounded_groups
from .diagnostics import Diagnostics, diagnose, loading_errors
from .evidence import Evidence, evidence
from .grid import Setting
from .heldout import heldout_log_likelihood, heldout_score, perplexity
from .markers import Markers, markers, top_features, top_samples
from .metrics import (
    FactorMatch,
    deviance_explained,
    dominant_factor,
    effective_factors,
    factor_correlation,
    hoyer,
    log_likelihood,
    match_factors,
    shares,
)
from .select import select
from .selection import Judgement, Selection
from .stability import (
    Consensus,
    Relation,
    Stability,
    Sweep,
    consensus,
    fit_seeds,
    relate,
    stability,
    sweep,
)
from .suggest import suggest_names
from .topics import TopicModel, coherence, exclusivity, topic_model
from .usage import Usage, usage

__all__ = [
    "BatchFindings",
    "Consensus",
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
    "batch_findings",
    "coherence",
    "confounded_groups",
    "consensus",
    "deviance_explained",
    "diagnose",
    "dominant_factor",
    "effective_factors",
    "evidence",
    "exclusivity",
    "factor_correlation",
    "fit_seeds",
    "heldout_log_likelihood",
    "heldout_score",
    "hoyer",
    "loading_errors",
    "log_likelihood",
    "markers",
    "match_factors",
    "perplexity",
    "relate",
    "select",
    "shares",
    "stability",
    "suggest_names",
    "sweep",
    "top_features",
    "top_samples",
    "topic_model",
    "usage",
]
