"""The schema of a recipe: one YAML file is one run.

Unknown and misspelled keys are errors that name the nearest right one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    field_validator,
    model_validator,
)

from leanbayes.errors import nearest, require, require_seed
from leanbayes.estimators import ESTIMATORS
from leanbayes.lab.measurements import Measurement
from leanbayes.lab.measurements.in_recipes import (
    MeasurementField,
    kind_of,
    with_listed_measurements,
)
from leanbayes.lab.path_names import path_name
from leanbayes.lab.validation import sentence
from leanbayes.likelihoods import LIKELIHOODS, Likelihood
from leanbayes.likelihoods.base import with_current_spelling
from leanbayes.posteriors import POSTERIORS, Posterior
from leanbayes.priors import PRIORS, Prior
from leanbayes.spec import Spec
from leanbayes.training.schedules import SCHEDULES, Schedule

Budget = Literal["cpu", "paper"]
_UNUSED_NOISE = (("scale", 1.0), ("noise", "fixed"))


def _core(kinds: Mapping[str, type[Spec]]) -> Any:
    """Read ``{kind: KTied, rank: 2}`` into a spec of the library, and writes it back."""

    def read(value: Any) -> Any:
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, Mapping):
            return value
        try:
            return Spec.from_dict(value, kinds)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"{dict(value)!r} describes nothing ({error})") from error

    def write(value: Spec | None) -> Any:
        return None if value is None else value.to_dict()

    return BeforeValidator(read), PlainSerializer(write)


_READ_POSTERIOR, _WRITE_POSTERIOR = _core(POSTERIORS)
_READ_PRIOR, _WRITE_PRIOR = _core(PRIORS)
PosteriorField = Annotated[Posterior, _READ_POSTERIOR, _WRITE_POSTERIOR]
PriorField = Annotated[Prior, _READ_PRIOR, _WRITE_PRIOR]


def _check_estimator(name: Any) -> Any:
    if not isinstance(name, str) or name not in ESTIMATORS:
        raise ValueError(f"estimator {name!r} is unknown{nearest(str(name), ESTIMATORS)}")
    return name


EstimatorField = Annotated[str, BeforeValidator(_check_estimator)]
Name = Annotated[str, AfterValidator(path_name)]
Seed = Annotated[int, AfterValidator(require_seed)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class _Section(BaseModel):
    """A strict part of a recipe."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )


class Data(_Section):
    """Which data, the options of its loader, and how training images are changed at random.

    ``augment`` is ``flip``, ``crop-flip`` or ``crop-flip-shared`` (one draw per batch); a crop is
    out of an image with ``pad`` black pixels more on each side.
    """

    name: str
    options: dict[str, Any] = {}
    augment: Literal["none", "flip", "crop-flip", "crop-flip-shared"] = "none"
    pad: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _check_pad(self) -> Data:
        if self.augment.startswith("crop") and not self.pad:
            raise ValueError(f"augment {self.augment!r} crops nothing without pad; set pad: 2 or 4")
        if self.pad and not self.augment.startswith("crop"):
            raise ValueError(
                f"pad is {self.pad}, and augment {self.augment!r} does not crop; set augment: "
                "crop-flip, or leave pad out"
            )
        return self


class Architecture(_Section):
    """Which network, and the options of its builder."""

    name: str
    options: dict[str, Any] = {}


class Layers(_Section):
    """Other choices for the layers that match a pattern."""

    posterior: PosteriorField | None = None
    prior: PriorField | None = None
    estimator: EstimatorField | None = None
    bias: PosteriorField | None = None
    bias_prior: PriorField | None = None

    def choices(self) -> dict[str, Any]:
        """Return what is set, as :func:`leanbayes.convert` takes it."""
        given = {name: value for name, value in self if value is not None}
        if "estimator" in given:
            given["estimator"] = ESTIMATORS[given["estimator"]]
        return given


class LikelihoodSection(_Section):
    """What the network's outputs mean: a kind of ``LIKELIHOODS``, and its arguments beside it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    kind: str = "categorical"

    @model_validator(mode="before")
    @classmethod
    def _from_earlier(cls, values: Any) -> Any:
        """Return the values as they are written today; the first runs gave noise to classes."""
        if not isinstance(values, Mapping):
            return values
        if values.get("kind") in ("categorical", "bernoulli"):
            return {k: v for k, v in values.items() if (k, v) not in _UNUSED_NOISE}
        return with_current_spelling(values)

    @model_validator(mode="after")
    def _check(self) -> LikelihoodSection:
        self.make()
        return self

    def make(self) -> Likelihood:
        """Return the likelihood, with its parameters where they start."""
        return LIKELIHOODS.make(self.kind, **(self.model_extra or {}))


class Optimizer(_Section):
    """The optimizer and its parameter groups.

    ``natural`` needs a checkout. It moves posteriors by their natural gradient with rate ``lr``
    within ``trust``; other parameters use Adam with rate ``other_lr``.
    """

    name: Literal["adam", "sgd", "natural"] = "adam"
    lr: float = Field(default=1e-3, gt=0)
    other_lr: float = Field(default=1e-3, gt=0)
    trust: float = Field(default=0.05, gt=0)
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = True
    weight_decay: float = Field(default=0.0, ge=0)
    decayed: tuple[Literal["means", "scales", "factors", "other"], ...] = ("means", "other")
    multipliers: dict[Literal["means", "scales", "factors", "other"], float] = {}

    @model_validator(mode="after")
    def _check_decay(self) -> Optimizer:
        if self.name == "natural" and self.weight_decay and "means" in self.decayed:
            raise ValueError(
                "a natural gradient does not decay means, which the prior draws to zero already; "
                "set decayed: [other], or leave weight_decay out"
            )
        return self


class LearningRate(_Section):
    """How the learning rate goes on: a factor of the optimizer's, by epoch."""

    kind: Literal["constant", "linear", "cosine", "steps"] = "constant"
    floor: float = Field(default=0.0, ge=0)
    milestones: tuple[float, ...] = ()
    factor: float = Field(default=0.1, gt=0)
    warmup: float = Field(default=0.0, ge=0)

    def __call__(self, epoch: float, epochs: int) -> float:
        """Return the factor at an epoch of so many."""
        value = 1.0
        if self.kind == "linear":
            value = max(1 - epoch / epochs, self.floor)
        if self.kind == "cosine":
            value = max(0.5 + 0.5 * math.cos(math.pi * epoch / epochs), self.floor)
        if self.kind == "steps":
            value = self.factor ** sum(epoch >= milestone for milestone in self.milestones)
        if epoch < self.warmup:
            value *= (epoch + 1) / (self.warmup + 1)
        return value


class KLSchedule(_Section):
    """The weight of the KL: a kind of ``SCHEDULES``, counted in steps or epochs."""

    kind: str = "constant"
    unit: Literal["step", "epoch"] = "step"
    options: dict[str, float | str] = {}

    @model_validator(mode="after")
    def _check(self) -> KLSchedule:
        self.make()
        return self

    def make(self) -> Schedule:
        """Return the schedule, a function of steps or epochs."""
        return SCHEDULES.make(self.kind, **self.options)


class Training(_Section):
    """How long, in which batches, with which care.

    ``loss`` is the ``average`` of the NLLs of samples and members, or that of their ``mixture``.
    """

    epochs: int = Field(ge=1)
    batch_size: int = Field(default=128, ge=1)
    samples: int = Field(default=1, ge=1)
    loss: Literal["average", "mixture"] = "average"
    gradient_clip: float | None = Field(default=None, gt=0)
    precision: Literal["32", "bf16-mixed", "16-mixed", "64"] = "32"
    patience: int | None = Field(default=None, ge=1)
    limit: int | None = Field(default=None, ge=1, description="use so many training examples")
    prior_updates: int | None = Field(default=None, ge=1)
    keep: Literal["last", "best"] = Field(
        default="last", description="end with the weights of the epoch of least validation NLL"
    )


class Evaluation(_Section):
    """How a trained model is judged."""

    samples: int = Field(default=100, ge=1)
    batch_size: int = Field(default=1000, ge=1)
    validation_samples: int = Field(default=1, ge=1)


class Published(_Section):
    """The row of a paper that a recipe stands for."""

    paper: str
    row: str
    values: dict[str, float] = {}
    note: str = ""


class Recipe(_Section):
    """Everything that defines a run.

    ``posterior: null`` trains the plain network. ``ensemble: 4`` trains four networks beside each
    other, and ``mc_dropout: true`` lets dropout layers draw in predictions.
    ``budgets`` holds what differs under ``cpu`` (2 cores, under an hour) from the published
    settings, and ``cut`` says it in words; a recipe that is read under the published settings has
    no cut.
    """

    name: Name
    data: Data
    architecture: Architecture
    ensemble: int = Field(default=1, ge=1)
    mc_dropout: bool = False
    posterior: PosteriorField | None = None
    prior: PriorField | None = None
    estimator: EstimatorField = "auto"
    bias: PosteriorField | None = None
    bias_prior: PriorField | None = None
    include: tuple[str, ...] = ("**",)
    exclude: tuple[str, ...] = ()
    layers: dict[str, Layers] = {}
    likelihood: LikelihoodSection = LikelihoodSection()
    optimizer: Optimizer = Optimizer()
    learning_rate: LearningRate = LearningRate()
    kl: KLSchedule = KLSchedule()
    training: Training
    evaluation: Evaluation = Evaluation()
    measurements: tuple[MeasurementField, ...] = ()
    seed: Seed = 42
    published: Published | None = None
    cut: str = ""
    budgets: dict[Budget, dict[str, Any]] = {}
    choices: dict[str, list[Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _list_measurements(cls, values: Any) -> Any:
        return with_listed_measurements(values) if isinstance(values, Mapping) else values

    @field_validator("measurements")
    @classmethod
    def _check_measurements(cls, listed: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
        kinds = [kind_of(each) for each in listed]
        for kind in kinds:
            require(kinds.count(kind) == 1, f"{kind!r} is listed twice; list it once")
        return listed

    def to_yaml(self) -> str:
        """Return the resolved recipe, readable and complete."""
        values = self.model_dump(mode="json", exclude={"budgets"})
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def check_recipe(values: Mapping[str, Any], source: str = "recipe") -> Recipe:
    """Validate plain values into a recipe; raises one sentence that names key and remedy."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{source}: a recipe is a mapping of keys to values, not {values!r:.60}")
    try:
        return Recipe.model_validate(dict(values))
    except ValidationError as error:
        raise ValueError(f"{source}: {sentence(error, Recipe)}") from error
