"""Policies whose weights are drawn once an episode, trained by REINFORCE on gymnasium.

The package needs the extra ``rl``; gymnasium is imported when an environment is made.
"""

import time
import warnings
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from leanbayes.conversion.convert import convert
from leanbayes.distributions import Map, WeightDistribution
from leanbayes.errors import require, require_choice, require_count, unknown
from leanbayes.estimators import Estimator
from leanbayes.metrics import Score, average
from leanbayes.models.random_maps import held
from leanbayes.ops import LinearOp, Usage
from leanbayes.posteriors import MeanField, Posterior, ZeroMean
from leanbayes.prediction.eval_mode import noise_by
from leanbayes.priors import Flat

_POSTERIORS: dict[str, Posterior | None] = {
    "deterministic": None,
    "noise": MeanField(0.017),
    "variance": ZeroMean(),
}
"""Of the second hidden layer; 0.017 is where the noise of noisy networks starts."""


@dataclass(frozen=True)
class PolicyGradient:
    """How a policy is made and trained.

    The network has two hidden layers. The weights of the second are known (``"deterministic"``),
    normal with learned means and scales (``"noise"``) or have scales alone (``"variance"``).

    Args:
        policy: what the second hidden layer is.
        episodes: how many are played in all.
        environments: how many of them side by side, between two updates. Each adds a draw of the
            weights, and a variance policy needs many: its function is another one every episode.
        hidden: units of each hidden layer.
        lr: the first learning rate of Adam; it falls linearly to zero.
        discount: of later rewards.
        steps: the longest episode; as the environment says, if not given.
    """

    policy: Literal["deterministic", "noise", "variance"] = "variance"
    episodes: int = 6400
    environments: int = 32
    hidden: int = 256
    lr: float = 1e-2
    discount: float = 0.99
    steps: int | None = None

    def __post_init__(self) -> None:
        require_choice("policy", self.policy, _POSTERIORS)
        require_count("environments", self.environments, 2)  # the others are the baseline


@dataclass(frozen=True)
class Episodes:
    """What training came to so far.

    Attributes:
        environment: what was played.
        settings: how.
        seed: of weights, noise, actions and the environment.
        returns: the sum of rewards of every episode, in the order of updates.
        seconds: of training.
    """

    environment: str
    settings: PolicyGradient
    seed: int
    returns: tuple[float, ...]
    seconds: float

    @property
    def finished(self) -> bool:
        """Whether all episodes were played."""
        return len(self.returns) >= self.settings.episodes

    def last(self, count: int = 100) -> Score:
        """Return the average return of the last episodes, with its standard error over them."""
        return average(torch.tensor(self.returns[-count:]))

    def __str__(self) -> str:
        played = f"{len(self.returns)} of {self.settings.episodes} episodes"
        told = f"{self.environment}, {self.settings.policy} policy, seed {self.seed}: {played}"
        if not self.returns:
            return told
        count, score = min(100, len(self.returns)), self.last()
        return f"{told}, return {score.value:.1f} ± {score.error:.1f} over the last {count}"


def policy_network(settings: PolicyGradient, observations: int, actions: int) -> nn.Module:
    """Return logits of actions from observations, through two hidden layers.

    Example:
        >>> policy_network(PolicyGradient(hidden=8), 4, 2)(torch.randn(5, 4)).shape
        torch.Size([5, 2])
    """
    hidden = settings.hidden
    net = nn.Sequential(
        nn.Linear(observations, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, actions),
    )
    posterior = _POSTERIORS[settings.policy]
    return net if posterior is None else convert(net, posterior, Flat(), include=["2"])


def make_environments(name: str, count: int) -> Any:
    """Return several gymnasium environments of a name, as one vector environment."""
    try:
        import gymnasium
    except ImportError as error:
        raise ImportError(
            "policies need gymnasium; run: pip install 'leanbayes[rl]'", name="gymnasium"
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # CartPole-v0 is old
            environments = gymnasium.make_vec(name, num_envs=count)
    except (gymnasium.error.Error, ImportError) as error:
        if name not in gymnasium.registry and ":" not in name:
            raise unknown("environment", name, gymnasium.registry) from error
        raise ValueError(f"environment {name!r} cannot be made here: {error}") from error
    observed, chosen = environments.single_observation_space, environments.single_action_space
    require(
        isinstance(chosen, gymnasium.spaces.Discrete) and len(observed.shape or ()) == 1,
        f"environment {name!r} has observations {observed} and actions {chosen}; a policy needs "
        "a vector of numbers and a choice among actions",
    )
    return environments


class Reinforce:
    """Trains a policy by REINFORCE, with one draw of its weights for every episode [variance, 6.2].

    Every environment plays one episode with weights of its own, ``w = μ + σ ∘ ε``, and the loss is
    ``−Σ_t log π(a_t | s_t, w) (G_t − b_t)``: ``G`` are discounted rewards-to-go and ``b_t`` is what
    the other environments have on average at step ``t`` (0 after their end). Differences are
    divided by their standard deviation. Gradients reach μ and σ through ``w``; no prior is used.

    Ctrl-C loses the episodes being played. :meth:`run` goes on where it was stopped, and ends in
    the same numbers as if it had not been.

    Args:
        environment: a name that gymnasium knows, with a choice of actions.
        settings: how to train.
        seed: of weights, noise, actions and the environment.

    Example:
        >>> learner = Reinforce("CartPole-v0", PolicyGradient(episodes=8, environments=8, hidden=8))
        >>> len(learner.run().returns)
        8
    """

    def __init__(
        self, environment: str, settings: PolicyGradient | None = None, *, seed: int = 0
    ) -> None:
        self.environment, self.seed = environment, seed
        self.settings = settings or PolicyGradient()
        with closing(make_environments(environment, 1)) as example:
            sizes = example.single_observation_space.shape[0], int(example.single_action_space.n)
            steps = self.settings.steps or example.spec.max_episode_steps
        if steps is None:
            raise ValueError(f"episodes of {environment!r} never end; give steps, the longest")
        self.steps = int(steps)
        with noise_by(seed, nn.ModuleList()):
            self.policy = policy_network(self.settings, *sizes)
        self._optimizer = torch.optim.Adam(self.policy.parameters(), lr=self.settings.lr)
        self._returns: list[float] = []
        self._seconds = 0.0

    @property
    def result(self) -> Episodes:
        """What is done so far."""
        returns = tuple(self._returns[: self.settings.episodes])
        return Episodes(self.environment, self.settings, self.seed, returns, self._seconds)

    def run(self) -> Episodes:
        """Play and learn until all episodes are played."""
        with closing(make_environments(self.environment, self.settings.environments)) as played:
            while not self.result.finished:
                start = time.perf_counter()
                self._returns += self._update(played)
                self._seconds += time.perf_counter() - start
        return self.result

    def _update(self, environments: Any) -> list[float]:
        """Return one episode in every environment, and one step of the optimizer."""
        settings, done = self.settings, len(self._returns)
        seed = self.seed * 1_000_003 + done  # episodes have seeds of their own
        with noise_by(seed, self.policy), held(self.policy, _one_each(settings.environments)):
            played = _play(self.policy, environments, self.steps, seed)
            advantages = _advantages(played.rewards, played.alive, settings.discount)
            log_probs = self.policy(played.observations).log_softmax(-1)
            chosen = log_probs.gather(-1, played.actions.unsqueeze(-1)).squeeze(-1)
            loss = -(chosen * advantages).sum() / played.alive.sum()
            gradients = torch.autograd.grad(loss, list(self.policy.parameters()))
        for parameter, gradient in zip(self.policy.parameters(), gradients, strict=True):
            parameter.grad = gradient
        for group in self._optimizer.param_groups:
            group["lr"] = settings.lr * (1 - done / settings.episodes)
        self._optimizer.step()
        return list(played.rewards.sum(1).tolist())


class _Played(NamedTuple):
    """One episode an environment: ``[environments, steps, …]``; dead after its end."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    alive: Tensor


@torch.no_grad()
def _play(policy: nn.Module, environments: Any, steps: int, seed: int) -> _Played:
    observed, _ = environments.reset(seed=seed)
    alive = torch.ones(len(observed), dtype=torch.bool)
    moments = []
    for _ in range(steps):
        seen = torch.as_tensor(observed, dtype=torch.float32)
        actions = policy(seen).softmax(-1).multinomial(1).squeeze(-1)
        observed, rewards, ended, stopped, _ = environments.step(actions.numpy())
        moments.append((seen, actions, torch.as_tensor(rewards).double() * alive, alive))
        alive = alive & ~torch.as_tensor(ended | stopped)
        if not alive.any():
            break
    return _Played(*(torch.stack(parts, 1) for parts in zip(*moments, strict=True)))


def _advantages(rewards: Tensor, alive: Tensor, discount: float) -> Tensor:
    """Return rewards-to-go above the average of the other rows, over their standard deviation.

    Rows that are all alike teach nothing, and their rounding errors must not.
    """
    to_go, ahead = torch.zeros_like(rewards), torch.zeros(len(rewards), dtype=rewards.dtype)
    for step in reversed(range(rewards.shape[1])):
        ahead = rewards[:, step] + discount * ahead
        to_go[:, step] = ahead
    others = (to_go.sum(0) - to_go) / (len(to_go) - 1)
    above = (to_go - others) * alive
    spread = above[alive].std()
    if spread <= 1e-6 * to_go.abs().max():
        return torch.zeros_like(above).float()
    return (above / spread).float()


@dataclass(frozen=True, eq=False)
class _RowsMap:
    """A matrix of its own for every row of a batch ``[rows, in]`` or ``[rows, steps, in]``."""

    op: LinearOp
    weight: Tensor

    def __call__(self, x: Tensor, /) -> Tensor:
        steps = x if x.ndim == 3 else x.unsqueeze(1)
        return torch.bmm(steps, self.weight.mT).reshape(*x.shape[:-1], -1)


def _one_each(rows: int) -> Estimator:
    """Return one draw of the weights for every row, to be held."""

    def draw(q: WeightDistribution, op: LinearOp, usage: Usage) -> Map:
        return _RowsMap(op, q.rsample((rows,)))

    return draw
