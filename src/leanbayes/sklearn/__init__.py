"""Interface to scikit-learn: Bayesian networks as estimators.

The package needs the extra ``sklearn``.
"""

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(
        "estimators need scikit-learn; run: pip install 'leanbayes[sklearn]'", name="sklearn"
    ) from error

from leanbayes.sklearn.classifier import BayesClassifier
from leanbayes.sklearn.regressor import BayesRegressor

__all__ = ["BayesClassifier", "BayesRegressor"]
