"""The trained part of a model: what an adapter file holds, and what it must find around itself."""

import hashlib
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from leanbayes.conversion.convert import topmost
from leanbayes.layers import is_bayesian
from leanbayes.torch_private import compiled_module

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
_LOOKED_AT = 64
"""How many numbers of a tensor count in a fingerprint."""


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model itself, without what compiles it, averages it or runs it in parallel."""
    while True:
        inner = model.module if isinstance(model, _WRAPPERS) else compiled_module(model)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def random_names(model: nn.Module) -> set[str]:
    """Return the names of all parameters and buffers of random layers."""
    return {
        f"{name}.{inner}" if name else inner
        for layer, names in topmost(model, is_bayesian).items()
        for name in names
        for inner in layer.state_dict()
    }


def trained_names(model: nn.Module) -> set[str]:
    """Return the names of tensors that training may change.

    These are all tensors of random layers, trained parameters with the buffers beside them, and
    the running averages of normalization.
    """
    names = random_names(model)
    for place, module in model.named_modules(remove_duplicate=False):
        before = f"{place}." if place else ""
        trained = {n for n, p in module.named_parameters(recurse=False) if p.requires_grad}
        if trained or hasattr(module, "running_mean"):
            trained |= dict(module.named_buffers(recurse=False)).keys()
        names |= {f"{before}{name}" for name in trained}
    return names


@torch.no_grad()
def fingerprint(tensors: Mapping[str, Tensor], without: Collection[str]) -> str:
    """Return a digest of names, shapes and some numbers of tensors, to distinguish networks."""
    digest = hashlib.sha256()
    for name in sorted(tensors.keys() - set(without)):
        tensor = tensors[name].detach()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        if tensor.numel():
            last = tensor.numel() - 1
            places = torch.linspace(0, last, min(last + 1, _LOOKED_AT), dtype=torch.float64)
            looked_at = tensor.reshape(-1)[places.round().long().to(tensor.device)]
            digest.update(repr(looked_at.double().cpu().tolist()).encode())
    return digest.hexdigest()[:16]
