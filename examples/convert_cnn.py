"""Make a trained CNN Bayesian, and compare a k-tied posterior with mean field.

A small convolutional network is trained on the digits of scikit-learn. Its weights become the means
of each posterior, which is trained for the same number of epochs again. Compare the posteriors with
each other: the deterministic network had half the epochs. Needs
``pip install -c constraints.txt -e '.[lab]'``.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import leanbayes as lb


def digits():
    """Return training and test images ``[n, 1, 8, 8]`` between 0 and 1, with labels."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1200], order[1200:]
    return x[train], y[train], x[test], y[test]


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def scores(model, x, y, samples):
    p = lb.predict(model, x, samples=samples, seed=1)
    return {
        "accuracy": (p.labels == y).float().mean().item(),
        "nll": -p.log_likelihood(y).mean().item(),
        "parameters": lb.count_parameters(model).total,
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few epochs only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kl-weight", type=float, help="KL weight; the recommended one by default")
    options = parser.parse_args(arguments)
    epochs, samples = (3, 5) if options.quick else (20, 50)

    torch.set_num_threads(1)  # small networks run fastest on one
    torch.manual_seed(options.seed)
    x, y, x_test, y_test = digits()
    recipe = {"epochs": epochs, "batch_size": 100, "seed": options.seed}
    net = network()
    lb.fit(net, (x, y), **recipe, lr=3e-3)
    results = {"deterministic": scores(net, x_test, y_test, samples=1)}
    for name, posterior in {"mean field": lb.MeanField(), "k-tied": lb.KTied(rank=2)}.items():
        model = lb.convert(net, posterior)
        lb.fit(model, (x, y), **recipe, lr=1e-3, kl_weight=options.kl_weight)
        results[name] = scores(model, x_test, y_test, samples)

    print("               accuracy     nll  parameters")
    for name, row in results.items():
        print(f"{name:13}{row['accuracy']:10.3f}{row['nll']:8.3f}{row['parameters']:12d}")
    return results


if __name__ == "__main__":
    main()
