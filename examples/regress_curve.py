"""Fit a curve with a gap in the data: predicted noise, model uncertainty and 90% intervals.

The noise of the data grows with x, and there are no data between −0.3 and 0.5. The network predicts
the noise (aleatoric uncertainty). Its random weights show where data are missing (epistemic).

This setting was chosen among about ten because it shows the effect. Others did not: with one hidden
layer the epistemic uncertainty hardly rose in the gap, and a wider network on 400 points underfit.
"""

import argparse
import math

import torch
from torch import nn

import leanbayes as lb


def curve(x):
    return torch.sin(4 * x)


def noise(x):
    return 0.05 + 0.1 * (x + 1)


def observe(x):
    return curve(x) + noise(x) * torch.randn_like(x)


def data(count):
    """Return inputs on both sides of the gap, and noisy values of the curve."""
    left, right = torch.rand(count // 2, 1) * 0.7 - 1.0, torch.rand(count // 2, 1) * 0.5 + 0.5
    x = torch.cat([left, right])
    return x, observe(x)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    steps, samples = (300, 50) if options.quick else (2000, 500)

    torch.set_num_threads(1)  # small networks run fastest on one
    torch.manual_seed(options.seed)
    x, y = data(1000)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
    model = lb.convert(net, posterior=lb.MeanField(), prior=lb.priors.Normal(1.0))
    # the network has two outputs: a mean and a raw scale
    likelihood = lb.likelihoods.Gaussian(0.2, noise="predicted")
    recipe = {"epochs": steps, "batch_size": len(x), "lr": 1e-2}
    recipe |= {"kl_weight": 1.0, "kl_warmup": 0.5, "seed": options.seed}
    lb.fit(model, (x, y), likelihood=likelihood, **recipe)

    def predict(points):
        return lb.predict(model, points, samples=samples, seed=1, likelihood=likelihood)

    grid = torch.tensor([-1.0, -0.7, -0.4, 0.1, 0.6, 0.8, 1.0]).unsqueeze(-1)
    p = predict(grid)
    low, high = p.quantiles([0.05, 0.95])
    print("    x  truth   mean   90% interval    noise (true)   model")
    for i, at in enumerate(grid[:, 0].tolist()):
        print(
            f"{at:5.1f} {curve(grid[i]).item():6.2f} {p.mean[i].item():6.2f}"
            f"   {low[i].item():5.2f} … {high[i].item():5.2f}"
            f"    {math.sqrt(p.aleatoric[i]):5.2f} ({noise(grid[i]).item():4.2f})"
            f"   {math.sqrt(p.epistemic[i]):5.2f}"
        )

    x_test, y_test = data(1000)
    seen, unseen = predict(x_test), predict(torch.linspace(-0.1, 0.3, 9).unsqueeze(-1))
    low, high = seen.quantiles([0.05, 0.95])
    coverage = ((low <= y_test) & (y_test <= high)).float().mean().item()
    print(f"\n90% intervals contain {100 * coverage:.1f}% of new data outside the gap")
    return {
        "coverage": coverage,
        "epistemic outside": seen.epistemic.mean().item(),
        "epistemic inside": unseen.epistemic.mean().item(),
    }


if __name__ == "__main__":
    main()
