"""Training: objectives, KL schedules, parameter groups, diagnosis."""

from leanbayes.models.random_maps import update_priors
from leanbayes.training import schedules
from leanbayes.training.calibrate import calibrate
from leanbayes.training.diagnose import Diagnosis, diagnose
from leanbayes.training.fit import fit
from leanbayes.training.history import History
from leanbayes.training.laplace import laplace
from leanbayes.training.objective import (
    Elbo,
    average_nll,
    elbo,
    mixture_nll,
)
from leanbayes.training.parameter_groups import (
    ParameterCounts,
    count_parameters,
    parameter_groups,
)
from leanbayes.training.schedules import recommended_kl_weight

__all__ = [
    "Diagnosis",
    "Elbo",
    "History",
    "ParameterCounts",
    "average_nll",
    "calibrate",
    "count_parameters",
    "diagnose",
    "elbo",
    "fit",
    "laplace",
    "mixture_nll",
    "parameter_groups",
    "recommended_kl_weight",
    "schedules",
    "update_priors",
]
