"""Policies with one draw of the weights for every episode, trained by REINFORCE."""

import sys
import warnings
from dataclasses import replace

import pytest
import torch

import leanbayes as lb
from research.papers.variance.reinforce import (
    Episodes,
    PolicyGradient,
    Reinforce,
    _advantages,
    _one_each,
    make_environments,
    policy_network,
)

gymnasium = pytest.importorskip("gymnasium")
np = pytest.importorskip("numpy")

POLICIES = ("deterministic", "noise", "variance")


class Signs(gymnasium.Env):
    """Four rounds; the right action is the sign of what is seen."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.round = 0
        return self._look(), {}

    def _look(self):
        self.right = int(self.np_random.integers(2))
        return np.array([2 * self.right - 1, 0.5], dtype=np.float32)

    def step(self, action):
        reward = float(action == self.right)
        self.round += 1
        return self._look(), reward, self.round == 4, False, {}


@pytest.fixture(autouse=True)
def signs():
    gymnasium.register("Signs-v0", entry_point=Signs, max_episode_steps=10)
    gymnasium.register("Endless-v0", entry_point=Signs)
    yield
    del gymnasium.registry["Signs-v0"], gymnasium.registry["Endless-v0"]


SMALL = PolicyGradient(episodes=24, environments=8, hidden=16, lr=1e-2)


@pytest.mark.checklist("VN20")
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_learns_a_small_environment(policy, request):
    settings = PolicyGradient(policy, episodes=1600, environments=16, hidden=32, lr=2e-2)
    episodes = Reinforce("Signs-v0", settings, seed=request.config.getoption("--seed")).run()
    first, last = episodes.returns[:100], episodes.last(100)
    assert sum(first) / 100 < 3
    assert last.value > 3.5, str(episodes)


@pytest.mark.checklist("VN20")
def test_a_variance_policy_has_no_means_in_its_second_hidden_layer():
    net = policy_network(SMALL, 4, 2)
    assert [name for name, _ in lb.extend.random_maps(net)] == ["2"]
    assert not net[2].mean_weight.any()
    kinds = {kind: policy_network(replace(SMALL, policy=kind), 4, 2) for kind in POLICIES}
    assert not list(lb.extend.random_maps(kinds["deterministic"]))
    assert kinds["noise"][2].mean_weight.any()


@pytest.mark.checklist("VN20")
def test_every_environment_keeps_weights_of_its_own_for_an_episode():
    net, x = policy_network(SMALL, 4, 2).double(), torch.randn(1, 4).double().expand(3, 4)
    episode = torch.randn(3, 5, 4).double()
    with lb.held(net, _one_each(3)):
        first = net(x)
        assert torch.equal(first, net(x))
        assert len(first.unique(dim=0)) == 3
        by_step = torch.stack([net(step) for step in episode.unbind(1)], 1)
        assert torch.allclose(net(episode), by_step)
        net(episode).sum().backward()
    assert net[2].posterior.scale.grad.abs().sum() > 0
    with lb.held(net, _one_each(3)):
        assert not torch.equal(first, net(x))


def test_rows_are_drawn_from_the_posterior():
    layer = lb.convert(
        torch.nn.Linear(2, 1, bias=False), lb.posteriors.ZeroMean(scale=0.5), lb.priors.Flat()
    )
    with torch.no_grad(), lb.held(layer, _one_each(20_000)):
        y = layer(torch.tensor([[3.0, 4.0]]).expand(20_000, 2))
    assert abs(float(y.mean())) < 5 * 2.5 / 20_000**0.5
    assert abs(float(y.std()) - 2.5) < 5 * 2.5 / 40_000**0.5


def test_advantages_are_rewards_to_go_above_those_of_the_others():
    rewards = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]).double()
    alive = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]]).bool()
    to_go = torch.tensor([[1.75, 1.5, 1.0], [1.0, 0.0, 0.0], [1.5, 1.0, 0.0]]).double()
    others = torch.stack([to_go[[1, 2]], to_go[[0, 2]], to_go[[0, 1]]]).mean(1)
    above = (to_go - others) * alive
    expected = above / above[alive].std()
    assert torch.allclose(_advantages(rewards, alive, 0.5), expected.float())
    even = _advantages(torch.ones(3, 2), torch.ones(3, 2).bool(), 0.9)
    assert not even.any()


def test_rewards_after_the_end_of_an_episode_do_not_count():
    settings = replace(SMALL, policy="deterministic", episodes=8, steps=7)
    episodes = Reinforce("Signs-v0", settings).run()  # gymnasium begins the next after 4 rounds
    assert len(episodes.returns) == 8
    assert max(episodes.returns) <= 4


def test_a_seed_repeats_everything_and_disturbs_nothing():
    before = torch.get_rng_state()
    first, again, other = (Reinforce("Signs-v0", SMALL, seed=seed).run() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.returns == again.returns != other.returns
    assert len(first.returns) == 24
    assert first.finished


def test_ctrl_c_within_an_episode_loses_that_update_only(monkeypatch):
    whole = Reinforce("Signs-v0", SMALL, seed=1).run()
    learner, steps = Reinforce("Signs-v0", SMALL, seed=1), []
    with monkeypatch.context() as patched:
        step = Signs.step

        def interrupted(self, action):
            steps.append(action)
            if len(steps) == 50:  # in the second update: 8 environments play 4 or 5 rounds
                raise KeyboardInterrupt
            return step(self, action)

        patched.setattr(Signs, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            learner.run()
    assert len(learner.result.returns) == 8
    assert learner.run().returns == whole.returns


def test_it_reads_as_a_sentence():
    episodes = Episodes("Signs-v0", SMALL, 2, (), 0.0)
    assert str(episodes) == "Signs-v0, variance policy, seed 2: 0 of 24 episodes"
    told = str(replace(episodes, returns=(1.0, 3.0)))
    assert told.endswith("2 of 24 episodes, return 2.0 ± 0.7 over the last 2")


@pytest.mark.checklist("VN20")
def test_cartpole_has_two_hundred_steps_and_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner = Reinforce("CartPole-v0", replace(SMALL, episodes=8))
    assert learner.steps == 200
    assert Reinforce("CartPole-v1", replace(SMALL, steps=200)).steps == 200
    assert max(learner.run().returns) <= 200
    assert Reinforce("Acrobot-v1", SMALL).steps == 500


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ("CartPole-v00", "environment 'CartPole-v00' is unknown; did you mean 'CartPole-v0'?"),
        ("CartPol-v1", "environment 'CartPol-v1' is unknown; did you mean 'CartPole-v1'?"),
        ("nothing_here:Own-v0", "'nothing_here:Own-v0' cannot be made here: No module named"),
        ("ALE/Pong-v5", "environment 'ALE/Pong-v5' is unknown"),
        ("Pendulum-v1", "environment 'Pendulum-v1' has observations .* a choice among actions"),
        ("Endless-v0", "episodes of 'Endless-v0' never end; give steps, the longest"),
    ],
)
def test_environments_that_cannot_be_played_are_refused_in_one_sentence(environment, sentence):
    with pytest.raises(ValueError, match=sentence):
        Reinforce(environment, SMALL)


def test_an_environment_whose_package_is_missing_says_which(monkeypatch):
    def missing(*args, **kwargs):
        raise gymnasium.error.DependencyNotInstalled("Box2D is not installed; pip install swig")

    monkeypatch.setattr(gymnasium, "make_vec", missing)
    with pytest.raises(ValueError, match="'LunarLander-v3' cannot be made here: Box2D is not"):
        make_environments("LunarLander-v3", 1)


def test_without_gymnasium_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(
        ImportError, match=r"policies need gymnasium; run: pip install 'leanbayes\[r"
    ):
        Reinforce("CartPole-v0")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"policy": "varianc"}, "policy 'varianc' is unknown; did you mean 'variance'?"),
        ({"environments": 1}, "environments is 1; it must be at least 2"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(SMALL, **changes)
