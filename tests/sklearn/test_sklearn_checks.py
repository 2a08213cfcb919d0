"""Both estimators pass scikit-learn's own checks; none is expected to fail."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from leanbayes.sklearn import BayesClassifier, BayesRegressor

SHORTER = {"epochs": 60}  # 150 and more by default: the same fit, which only takes longer


@parametrize_with_checks([BayesRegressor(**SHORTER), BayesClassifier(**SHORTER)])
def test_scikit_learn_accepts(estimator, check):
    check(estimator)


@pytest.mark.parametrize("kind", [BayesRegressor, BayesClassifier])
def test_what_is_fitted_carries_its_tags(kind):
    tags = kind().__sklearn_tags__()
    assert tags.target_tags.required
    assert not tags.non_deterministic
    assert not tags.input_tags.sparse
    single = tags.classifier_tags if kind is BayesClassifier else tags.regressor_tags
    assert not single.poor_score
