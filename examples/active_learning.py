"""Choose which images to label next: those on which samples of the model disagree most.

Both learners start with the same 20 digits and request 20 more labels in every round. One chooses
images at random, the other by the mutual information between label and weights. Every round trains
a new network. Needs ``pip install -c constraints.txt -e '.[lab]'``.
"""

import argparse

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

import leanbayes as lb

FIRST, MORE = 20, 20


def digits():
    """Return a pool and test images as vectors of 64 numbers between 0 and 1, with labels."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    pool, test = order[:1200], order[1200:]
    return x[pool], y[pool], x[test], y[test]


def trained(x, y, steps, seed):
    """Return a new network, trained on the labels so far."""
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = lb.convert(net, posterior=lb.MeanField(0.03), prior=lb.priors.Normal(0.3))
    recipe = {"epochs": steps, "batch_size": len(x), "lr": 1e-2, "kl_weight": 0.05}
    lb.fit(model, (x, y), **recipe, seed=seed, progress=False)
    return model


def at_random(model, x):
    return torch.rand(len(x))


def by_information(model, x):
    return lb.predict(model, x, samples=30, seed=1).mutual_information


LEARNERS = {"random": at_random, "mutual information": by_information}


def learn(score, seed, rounds, steps):
    """Return the test accuracy after every round."""
    torch.manual_seed(seed)
    x, y, x_test, y_test = digits()
    known = torch.zeros(len(x), dtype=torch.bool)
    known[torch.randperm(len(x))[:FIRST]] = True
    accuracies = []
    for _ in range(rounds):
        model = trained(x[known], y[known], steps, seed)
        p = lb.predict(model, x_test, samples=30, seed=2)
        accuracies.append((p.labels == y_test).float().mean().item())
        values = score(model, x).masked_fill(known, -1.0)
        known[values.topk(MORE).indices] = True
    return accuracies


def draw(path, curves):
    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    axis = lb.plots.style(figure.subplots(), "labeled images", "test accuracy (%)")
    for name, accuracies in curves.items():
        labels = FIRST + MORE * torch.arange(accuracies.shape[1])
        axis.plot(labels, 100 * accuracies.mean(0), "o-", ms=4, label=name)
        low, high = 100 * accuracies.amin(0), 100 * accuracies.amax(0)
        axis.fill_between(labels, low, high, alpha=0.2, lw=0)
    seeds = len(next(iter(curves.values())))
    axis.legend(title=f"mean and range of {seeds} seeds", edgecolor="none")
    figure.savefig(path, dpi=120)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed and a few rounds only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="active_learning.png")
    options = parser.parse_args(arguments)
    seeds, rounds, steps = (1, 3, 60) if options.quick else (3, 11, 150)

    torch.set_num_threads(1)  # small networks run fastest on one
    curves = {
        name: torch.tensor([learn(score, options.seed + i, rounds, steps) for i in range(seeds)])
        for name, score in LEARNERS.items()
    }
    draw(options.picture, curves)
    print(f"labels  {'random':>20}  {'mutual information':>20}")
    for i in range(rounds):
        means = [f"{100 * curve[:, i].mean():18.1f}%" for curve in curves.values()]
        print(f"{FIRST + MORE * i:6d}  {'  '.join(means)}")
    print(f"mean of {seeds} seeds; see {options.picture}")
    return {name: curve.mean(0).tolist() for name, curve in curves.items()}


if __name__ == "__main__":
    main()
