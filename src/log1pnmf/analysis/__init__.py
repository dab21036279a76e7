"""From a `Fit` and its counts to findings."""

import inspect as _inspect

from log1pnmf._common.checks import extend as _extend

from .batches import batch_findings as batch_findings
from .batches import confounded_groups as confounded_groups
from .diagnostics import Diagnostics as Diagnostics
from .diagnostics import diagnose as diagnose
from .diagnostics import loading_errors as loading_errors
from .evidence import Evidence as Evidence
from .evidence import evidence as evidence
from .grid import Setting as Setting
from .heldout import heldout_log_likelihood as heldout_log_likelihood
from .heldout import heldout_score as heldout_score
from .heldout import perplexity as perplexity
from .markers import Markers as Markers
from .markers import markers as markers
from .markers import top_features as top_features
from .markers import top_samples as top_samples
from .metrics import FactorMatch as FactorMatch
from .metrics import deviance_explained as deviance_explained
from .metrics import dominant_factor as dominant_factor
from .metrics import effective_factors as effective_factors
from .metrics import log_likelihood as log_likelihood
from .metrics import match_factors as match_factors
from .metrics import shares as shares
from .select import select as select
from .selection import Judgement as Judgement
from .selection import Selection as Selection
from .stability import Consensus as Consensus
from .stability import Sweep as Sweep
from .stability import consensus as consensus
from .stability import sweep as sweep
from .suggest import suggest_names as suggest_names
from .topics import TopicModel as TopicModel
from .topics import coherence as coherence
from .topics import topic_model as topic_model
from .usage import Usage as Usage
from .usage import usage as usage

SHARED = """
source : Fit, or anything that `log1pnmf.as_fit` takes
fit : Fit, or anything that `log1pnmf.as_fit` takes
counts : array, sparse matrix or data frame of shape (n_samples, n_features)
    The counts that were fitted. Of counts in chunks, only the samples kept in memory are used, up to 8,192 at
    random.
n_components : int
    Number of factors.
c : float
    Shift of the link.
feature_names : sequence of str, optional
    Names of the features; by default those of the fit.
key : str, optional
    Name of the fit in an AnnData.
random_state : int, RandomState, Generator or None
    Seed or generator of the random numbers.
n_jobs : int, optional
    Number of threads.
verbose : int, optional
    As in `log1pnmf.Log1pNMF`.
"""  # parameters that functions here leave out of their docstrings
for _function in filter(_inspect.isfunction, list(vars().values())):
    if _function is not _extend:
        _extend(_function, {}, SHARED)
