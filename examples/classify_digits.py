"""Classify digits, and detect inputs that are not digits.

One network is trained twice on the digits of scikit-learn, as it is and with a k-tied posterior.
The out-of-distribution (OOD) inputs are the test images with shuffled pixels. Needs
``pip install -c constraints.txt -e '.[lab]'``.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import nn

import leanbayes as lb


def digits():
    """Return training and test images as vectors of 64 numbers between 0 and 1, with labels."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1200], order[1200:]
    return x[train], y[train], x[test], y[test]


def shuffled(x):
    """Return images with their pixels in random order, a different one for every image."""
    order = torch.rand_like(x).argsort(-1)
    return x.gather(-1, order)


def scores(model, x, y, ood, samples):
    """Return accuracy and NLL of digits, and the AUROC of OOD detection by uncertainty."""
    known = lb.predict(model, x, samples=samples, seed=1)
    unknown = lb.predict(model, ood, samples=samples, seed=2)
    is_ood = torch.cat([torch.zeros(len(x)), torch.ones(len(ood))])

    def auroc(uncertainty):
        value = torch.cat([uncertainty(known), uncertainty(unknown)])
        return roc_auc_score(is_ood, value)

    return {
        "accuracy": (known.labels == y).float().mean().item(),
        "nll": -known.log_likelihood(y).mean().item(),
        "entropy": auroc(lambda p: p.entropy),
        "disagreement": auroc(lambda p: p.mutual_information),
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few epochs only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kl-weight", type=float, help="KL weight; the recommended one by default")
    options = parser.parse_args(arguments)
    epochs, samples = (10, 10) if options.quick else (40, 100)

    torch.set_num_threads(1)  # small networks run fastest on one
    torch.manual_seed(options.seed)
    x, y, x_test, y_test = digits()
    ood = shuffled(x_test)
    net = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    tied = lb.convert(net)
    recipe = {"epochs": epochs, "batch_size": 100, "lr": 3e-3, "seed": options.seed}
    lb.fit(net, (x, y), **recipe)
    lb.fit(tied, (x, y), **recipe, kl_weight=options.kl_weight)
    results = {
        "deterministic": scores(net, x_test, y_test, ood, samples=1),
        "k-tied": scores(tied, x_test, y_test, ood, samples),
    }
    columns = list(results["k-tied"])
    print(f"{'':13}{'':24}{'AUROC of shuffled digits by':>28}")
    print(f"{'':13}" + "".join(f"{name:>14}" for name in columns))
    for name, row in results.items():
        print(f"{name:13}" + "".join(f"{row[column]:14.3f}" for column in columns))
    return results


if __name__ == "__main__":
    main()
