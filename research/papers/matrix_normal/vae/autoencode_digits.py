"""Auto-encode digits with latent vectors that are independent, matrix normal or fully correlated.

Trains one small network for each kind in a plain torch loop, on the digits of scikit-learn with
pixels black or white. Prints the evidence lower bound and the importance-sampled log likelihood of
test images, and draws what comes back of some of them, samples, and walks through the latent space.
Run it with ``python -m research.papers.matrix_normal.vae.autoencode_digits``.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributions import Distribution

import leanbayes as lb
from research.papers.matrix_normal.vae.likelihood import importance_sampled
from research.papers.matrix_normal.vae.network import (
    LatentPosterior,
    scored_draws,
    standard_kl,
)
from research.papers.matrix_normal.vae.pictures import sheet

KINDS: dict[str, tuple[Literal["diag", "mn", "mv"], tuple[int, ...]]] = {
    "independent": ("diag", (6,)),
    "matrix normal": ("mn", (3, 2)),
    "full": ("mv", (6,)),
}


def digits() -> tuple[Tensor, Tensor]:
    """Training and test images of 8 × 8 pixels that are 0 or 1."""
    images = torch.tensor(load_digits().images, dtype=torch.float32).flatten(1)
    x = (images > 7).float()[
        torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    ]
    return x[:1400], x[1400:]


def mlp(inputs: int, outputs: int, hidden: int = 96) -> nn.Sequential:
    """Return two hidden layers of ELUs."""
    layers = (nn.Linear(inputs, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU())
    return nn.Sequential(*layers, nn.Linear(hidden, outputs))


class AutoEncoder(nn.Module):
    """Two perceptrons, and what the outputs of the first say about the latent vector."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.latent = LatentPosterior(*KINDS[kind])
        self.encoder = mlp(64, self.latent.outputs)
        self.decoder = mlp(self.latent.size, 64)

    def posterior(self, x: Tensor) -> Distribution:
        q: Distribution = self.latent(self.encoder(x))
        return q

    def log_likelihood(self, x: Tensor, z: Tensor) -> Tensor:
        logits: Tensor = self.decoder(z)
        pixels = x.expand_as(logits)
        return -F.binary_cross_entropy_with_logits(logits, pixels, reduction="none").sum(-1)

    def log_weights(self, x: Tensor, samples: int) -> Tensor:
        """Return ``log p(x | z) + log p(z) − log q(z | x)`` of draws from the encoder."""
        z, density = scored_draws(self.posterior(x), samples)
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(-1)
        return self.log_likelihood(x, z) + prior - density


def train(model: AutoEncoder, x: Tensor, epochs: int) -> None:
    """Maximize the ELBO, with a KL whose weight grows over the first quarter."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, epochs)
    weight = lb.training.schedules.Exponential(max(1, epochs // 4), start=0.1)
    for epoch in range(epochs):
        for batch in torch.randperm(len(x)).split(100):
            q = model.posterior(x[batch])
            bound = model.log_likelihood(x[batch], q.rsample()) - weight(epoch) * standard_kl(q)
            optimizer.zero_grad()
            (-bound.mean()).backward()
            optimizer.step()
        decay.step()


@torch.no_grad()
def judge(model: AutoEncoder, x: Tensor, samples: int) -> dict[str, float]:
    """Averages over images of the bound and of the log likelihood, and the error of sampling."""
    estimate = importance_sampled(lambda count: model.log_weights(x, count), samples, at_once=50)
    return {
        "bound": estimate.bound.mean().item(),
        "log likelihood": estimate.log_likelihood.mean().item(),
        "error": estimate.error.norm().item() / len(x),
    }


@torch.no_grad()
def picture(model: AutoEncoder, x: Tensor) -> bytes:
    """Return images, what comes back of them, two rows of samples, and walks between two pairs."""
    means = model.posterior(x[:10]).mean
    share = torch.linspace(0, 1, 10).unsqueeze(-1)
    walks = [means[i] + share * (means[i + 1] - means[i]) for i in (0, 2)]
    z = torch.stack([means, *torch.randn(2, 10, model.latent.size), *walks])
    return sheet(torch.cat([x[None, :10], model.decoder(z).sigmoid()]), (8, 8), zoom=4)


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """Train the three kinds, print a table and write a picture."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few epochs only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("digits.png"), help="the picture")
    options = parser.parse_args(arguments)
    epochs, samples = (30, 200) if options.quick else (200, 5000)

    torch.set_num_threads(1)  # small networks run fastest on one
    x, x_test = digits()
    results = {}
    print(f"{'latent vector':16}{'ELBO':>9}{'log likelihood':>17}{'± sampling':>12}")
    for kind in KINDS:
        torch.manual_seed(options.seed)
        model = AutoEncoder(kind)
        train(model, x, epochs)
        results[kind] = judge(model, x_test, samples)
        bound, value, error = results[kind].values()
        print(f"{kind:16}{bound:9.3f}{value:17.3f}{error:12.4f}")
        if kind == "matrix normal":
            options.out.write_bytes(picture(model, x_test))
    print(f"Picture of the matrix normal in {options.out}")
    return results


if __name__ == "__main__":
    main()
