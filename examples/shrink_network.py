"""Shrink a network: learn which units matter, and remove the others.

A network for the digits of scikit-learn learns a relevance for every row and column of its
matrices. Those without relevance are pruned, and ``lb.compact`` removes them. The result is a
smaller plain network with the same outputs. The threshold is chosen on separate images, which are
used neither for training nor for testing. Needs ``pip install -c constraints.txt -e '.[lab]'``.
"""

import argparse

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

import leanbayes as lb

THRESHOLDS = [0.05, 0.02, 0.005, 0.001, 1e-4]
ALLOWED = 0.005
"""Accuracy that the choice of a threshold may cost."""


def digits():
    """Return images for training, choice and test, as vectors of 64 numbers, with labels."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 8 - 1, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return [(x[part], y[part]) for part in order.split([1000, 300, len(x) - 1300])]


def trained(x, y, steps):
    """Train weights with a relevance for every row and column; KL warm-up over half of the steps.

    ``lb.fit`` trains most models. Here every step sets the relevances, which needs its own loop.
    """
    net = nn.Sequential(
        nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )
    model = lb.convert(net, lb.MeanField(0.01), lb.priors.GroupARD(0.3))
    optimizer = torch.optim.Adam(lb.parameter_groups(model, lr=0.01))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        batch = torch.randint(len(x), (200,))
        nll = F.cross_entropy(model(x[batch]), y[batch])
        weight = min(1.0, 2 * step / steps)
        loss = lb.elbo(nll, lb.kl(model), data_size=len(x), weight=weight).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        lb.training.update_priors(model)
    return model


def shrunk(model, x, threshold):
    """Return the plain network without rows and columns of less relevance; all classes stay."""
    pruned = lb.prune(model, by="relevance", groups="row", threshold=threshold, include=["0", "2"])
    pruned = lb.prune(pruned, by="relevance", groups="column", threshold=threshold)
    return lb.compact(lb.deterministic(pruned), x)


@torch.no_grad()
def accuracy(net, x, y):
    return (net(x).argmax(-1) == y).float().mean().item()


def draw(path, whole, sizes, accuracies, chosen):
    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    axis = lb.plots.style(figure.subplots(), "multiply-adds per image", "test accuracy (%)")
    percent = [100 * value for value in accuracies]
    axis.plot(sizes, percent, "o-", ms=4, label="pruned and compacted")
    axis.plot(sizes[chosen], percent[chosen], "o", ms=11, mfc="none", label="chosen")
    axis.plot(whole[0], 100 * whole[1], "s", label="full network")
    axis.set_xscale("log")
    axis.legend(edgecolor="none")
    figure.savefig(path, dpi=120)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="shrink_network.png")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)  # small networks run fastest on one
    torch.manual_seed(options.seed)
    (x, y), choice, test = digits()
    model = trained(x, y, 200 if options.quick else 600)
    whole = lb.deterministic(model)
    nets, reports = zip(*(shrunk(model, x, each) for each in THRESHOLDS), strict=True)
    sizes = [report.multiply_adds[1] for report in reports]
    least = accuracy(whole, *choice) - ALLOWED
    good = [i for i, net in enumerate(nets) if accuracy(net, *choice) >= least]
    chosen = min(good or [len(nets) - 1], key=lambda i: sizes[i])
    accuracies = [accuracy(net, *test) for net in nets]

    print("relevance  multiply-adds  test accuracy")
    print(f"{'all':>9}{reports[0].multiply_adds[0]:15,d}{accuracy(whole, *test):15.3f}")
    for i, threshold in enumerate(THRESHOLDS):
        mark = "  <- chosen" if i == chosen else ""
        print(f"{threshold:9g}{sizes[i]:15,d}{accuracies[i]:15.3f}{mark}")
    before = reports[0].multiply_adds[0], accuracy(whole, *test)
    draw(options.picture, before, sizes, accuracies, chosen)
    print(f"{nets[chosen]}\nsee {options.picture}")
    return {"whole": before, "shrunk": (sizes[chosen], accuracies[chosen])}


if __name__ == "__main__":
    main()
