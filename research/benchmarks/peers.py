"""Other libraries, each as its own documentation has it, in a separate virtual environment.

Their packages are imported by the method that needs them: one that cannot be installed is named as
such and does not keep the others from being measured.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

from research.benchmarks.methods import DATA_SIZE, Builder, Works, mean_of_passes

PACKAGES = {
    "torchbnn": "torchbnn",
    "bayesian-torch": "bayesian-torch",
    "IVON": "ivon-opt",
    "posteriors": "posteriors",
}
"""The package that each peer needs."""


def environment(folder: Path, constraints: Path) -> Path:
    """Make the virtual environment of the peers, if it is not there; returns its Python.

    torch comes at the version of ``constraints``; a peer that does not install is left out.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    done = folder / ".installed"
    if not done.exists():
        install = [str(python), "-m", "pip", "install", "--quiet", "-c", str(constraints)]
        subprocess.run([*install, "torch", "safetensors", "numpy"], check=True)
        for package in PACKAGES.values():
            if subprocess.run([*install, package], check=False).returncode:
                print(f"{package} cannot be installed; it is left out", file=sys.stderr)
        done.touch()
    return python


def torchbnn_layers(net: nn.Sequential, prior: float = 0.1) -> nn.Sequential:
    """Its layers in the place of torch's; standard deviations start at those of the prior."""
    import torchbnn as bnn

    normal = {"prior_mu": 0.0, "prior_sigma": prior}
    for name, layer in list(net.named_modules()):
        if isinstance(layer, nn.LSTM | nn.Embedding | nn.MultiheadAttention):
            raise TypeError(f"torchbnn has no {type(layer).__name__}")
        if isinstance(layer, nn.Linear):
            sizes = _sizes(layer, "in_features", "out_features")
            net.set_submodule(name, bnn.BayesLinear(**normal, **sizes))
        elif isinstance(layer, nn.Conv2d):
            sizes = _sizes(layer, "in_channels", "out_channels", "kernel_size", "padding", "stride")
            bias = layer.bias is not None
            net.set_submodule(name, bnn.BayesConv2d(**normal, **sizes, bias=bias))
    return net


def torchbnn(net: nn.Sequential) -> Works:
    """Return mean field with one draw of the weights for a batch; the KL summed, not averaged."""
    import torchbnn as bnn

    model = torchbnn_layers(net)
    kl = bnn.BKLLoss(reduction="sum")
    return _variational(model, lambda: kl(model).squeeze())


def _sizes(layer: nn.Module, *names: str) -> Mapping[str, object]:
    return {name: getattr(layer, name) for name in names}


def bayesian_torch_layers(net: nn.Sequential, prior: float = 1.0) -> nn.Sequential:
    """Return a network converted in place by the library's own function."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn

    dnn_to_bnn(
        net,
        {
            "prior_mu": 0.0,
            "prior_sigma": prior,
            "posterior_mu_init": 0.0,
            "posterior_rho_init": -3.0,
            "type": "Reparameterization",
            "moped_enable": False,
            "moped_delta": 0.5,
        },
    )
    return net


def bayesian_torch(net: nn.Sequential) -> Works:
    """Return mean field by reparameterization."""
    from bayesian_torch.models.dnn_to_bnn import get_kl_loss

    model = bayesian_torch_layers(net)
    return _variational(model, lambda: get_kl_loss(model))


def _variational(model: nn.Module, kl) -> Works:
    optimizer = Adam(model.parameters(), lr=1e-3)

    def outputs(x: Tensor) -> Tensor:
        return model(x)

    def step(x: Tensor, y: Tensor) -> None:
        loss = F.cross_entropy(outputs(x), y) + kl() / DATA_SIZE
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Works(step, mean_of_passes(outputs), model, optimizer)


def ivon(net: nn.Sequential) -> Works:
    """Return the optimizer that keeps a diagonal normal over the weights; one sample per step."""
    from ivon import IVON

    optimizer = IVON(net.parameters(), lr=0.1, ess=DATA_SIZE)

    def step(x: Tensor, y: Tensor) -> None:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
        optimizer.step()

    def outputs(x: Tensor) -> Tensor:
        with optimizer.sampled_params():
            return net(x)

    return Works(step, mean_of_passes(outputs), net, optimizer)


def posteriors(net: nn.Sequential) -> Works:
    """Return variational inference with a diagonal normal and Adam."""
    import torchopt
    from posteriors import diag_normal_log_prob, vi

    def log_posterior(parameters, batch):
        x, y = batch
        logits = torch.func.functional_call(net, parameters, (x,))
        log_prior = diag_normal_log_prob(parameters, sd_diag=0.3) / DATA_SIZE
        return log_prior - F.cross_entropy(logits, y), logits

    start = {name: p.detach().clone() for name, p in net.named_parameters()}
    transform = vi.diag.build(
        log_posterior, torchopt.adam(lr=1e-3), temperature=1 / DATA_SIZE, init_log_sds=-4.0
    )
    state = transform.init(start)

    def step(x: Tensor, y: Tensor) -> None:
        nonlocal state
        state, _ = transform.update(state, (x, y), inplace=False)

    def outputs(x: Tensor) -> Tensor:
        return torch.func.functional_call(net, vi.diag.sample(state), (x,))

    return Works(step, mean_of_passes(outputs), net)


PEERS: dict[str, Builder] = {
    "torchbnn": torchbnn,
    "bayesian-torch": bayesian_torch,
    "IVON": ivon,
    "posteriors": posteriors,
}


def available() -> dict[str, Builder]:
    """Return the peers that are installed here."""
    return {name: peer for name, peer in PEERS.items() if _installed(PACKAGES[name])}


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
