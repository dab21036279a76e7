"""scikit-learn's own checks of an estimator: all of them, none expected to fail."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from log1pnmf import Log1pNMF


# The data of these checks are fractions, often with a single feature or sample.
@pytest.mark.filterwarnings("ignore:counts has .* non-integer value:UserWarning")
@pytest.mark.filterwarnings("ignore:n_components=2 is more than the 1 that samples:UserWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks([Log1pNMF(n_jobs=1)])
def test_scikit_learn(estimator, check):
    check(estimator)
