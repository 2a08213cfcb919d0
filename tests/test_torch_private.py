"""Private names of torch: what breaks when torch changes them, and that one file alone has them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from leanbayes import torch_private

SOURCE = Path(__file__).parents[1] / "src"
ONLY = "leanbayes/torch_private.py"
MOST_LINES = 16

_OBJECTS = (
    *(nn.Module(), nn.LSTM(1, 1), nn.MultiheadAttention(2, 1), nn.TransformerEncoderLayer(2, 1, 2)),
    *(torch.zeros(1), torch.ops.aten.add.Tensor, torch_private.TorchDispatchMode),
)


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


NAMES = {name for each in _OBJECTS for name in dir(each) if is_private(name)} | {"_orig_mod"}


def root(node):
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def own_names(tree):
    """Methods that a file defines and attributes that it sets, which may be called as torch's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def is_use(node, own):
    """Whether a node names something private of torch."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [alias.name for alias in node.names]
        whole = [f"{node.module}.{n}" for n in names] if isinstance(node, ast.ImportFrom) else names
        return any(n.startswith("torch.") and any(map(is_private, n.split("."))) for n in whole)
    if isinstance(node, ast.Attribute) and is_private(node.attr):
        if root(node) in ("torch", "nn", "F", "Tensor", "torch_kl", "forward_ad", "fwAD"):
            return True
        return node.attr in NAMES and not (root(node) in ("self", "cls") and node.attr in own)
    if isinstance(node, ast.FunctionDef):
        return node.name in NAMES and bool(node.args.args) and node.args.args[0].arg == "cls"
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in NAMES


def uses(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = set(own_names(tree))
    return {node.lineno for node in ast.walk(tree) if is_use(node, own)}


FILES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}


def test_one_file_has_the_private_names():
    others = {name: path for name, path in FILES.items() if name != ONLY}
    found = [f"{name}:{line}" for name, path in others.items() for line in sorted(uses(path))]
    assert not found, "public names do, or a function in torch_private.py"


def test_they_are_few():
    assert 0 < len(uses(FILES[ONLY])) <= MOST_LINES


@pytest.mark.parametrize(
    "line",
    [
        "from torch._ops import OpOverload",
        "from torch.nn.modules.dropout import _DropoutNd",
        "import torch._dynamo",
        "torch._C._get_tracing_state()",
        "module._forward_hooks",
        "getattr(module, '_backward_hooks')",
        "nn.modules.batchnorm._BatchNorm",
        "super()._load_from_state_dict(state)",
    ],
)
def test_the_search_finds(line, tmp_path):
    (tmp_path / "file.py").write_text(f"x = 1\n{line}\n")
    assert uses(tmp_path / "file.py") == {2}


class Doubles(torch_private.DispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        y = func(*args, **(kwargs or {}))
        return y if func is not torch.ops.aten.add.Tensor else y * 2


def test_dispatch_mode_sees_operations():
    """Breaks: predictions by a seed in one of several threads."""
    with Doubles():
        assert (torch.ones(1) + torch.ones(1)).item() == 4


def test_a_dispatch_mode_loads_no_compiler(tmp_path):
    """Breaks: the first prediction by a seed would wait for an import of seconds."""
    code = (
        "import sys, torch\nfrom leanbayes.torch_private import DispatchMode\n"
        "class Mode(DispatchMode):\n"
        "    def __torch_dispatch__(self, func, types, args=(), kwargs=None):\n"
        "        return func(*args, **(kwargs or {}))\n"
        "with Mode():\n    torch.ones(1) + 1\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_moved_module_may_correct_its_tensors():
    """Breaks: fixed numbers of priors and posteriors lose digits by ``model.half()``."""

    class Kept(torch_private.Moved):
        def __init__(self):
            super().__init__()
            self.register_buffer("number", torch.ones(()))

        def after_move(self, move):
            move()
            self.number = self.number.float()

    model = nn.Sequential(nn.Linear(1, 1), Kept()).half()
    assert model[0].weight.dtype == torch.float16
    assert model[1].number.dtype == torch.float32


def test_a_compiled_module_is_recognized():
    """Breaks: seeds of compiled models, saving of compiled models, the choice of the loop."""
    net = nn.Linear(1, 1)
    assert torch_private.compiled_module(net) is None
    assert torch_private.compiled_module(torch.compile(net, backend="eager")) is net
    assert not torch_private.calls_compiled(net)
    net.compile(backend="eager")
    assert torch_private.calls_compiled(net)


def act(*args):
    """A hook that does nothing."""


HOOKS = {
    "forward_pre": lambda m: m.register_forward_pre_hook(act),
    "forward": lambda m: m.register_forward_hook(act),
    "backward_pre": lambda m: m.register_full_backward_pre_hook(act),
    "backward": lambda m: m.register_full_backward_hook(act),
    "state_dict": lambda m: m.register_state_dict_post_hook(act),
    "state_dict_pre": lambda m: m.register_state_dict_pre_hook(act),
    "load_state_dict_pre": lambda m: m.register_load_state_dict_pre_hook(act),
    "load_state_dict_post": lambda m: m.register_load_state_dict_post_hook(act),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_are_found(kind):
    """Breaks: conversion would lose hooks, and vectorized prediction would run past them."""
    net = nn.Linear(1, 1)
    assert not list(torch_private.hooks(net))
    HOOKS[kind](net)
    assert f"{kind}_hooks" in torch_private.hooks(net)


def test_gradient_hooks_are_found():
    """Breaks: conversion would lose hooks of a parameter."""
    for register in ("register_hook", "register_post_accumulate_grad_hook"):
        parameter = nn.Parameter(torch.ones(1))
        assert not torch_private.gradient_hooks(parameter)
        getattr(parameter, register)(lambda gradient: None)
        assert torch_private.gradient_hooks(parameter)


def test_an_operation_declares_its_arguments():
    """Breaks: predictions by a seed in threads, and ONNX export."""
    names = [a.name for a in torch_private.schema_of(torch.ops.aten.add.Tensor).arguments]
    assert names == ["self", "other", "alpha"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_part_that_is_computed_again_is_recognized(reentrant):
    """Breaks: gradients of a layer that is called twice under activation checkpointing."""
    seen = []

    def part(x):
        seen.append((torch_private.packs_saved_tensors(), torch_private.is_in_backward()))
        return x**2

    x = torch.ones(1, requires_grad=True)
    part(x)
    assert seen.pop() == (False, False)
    checkpoint(part, x, use_reentrant=reentrant).sum().backward()
    first, second = seen
    assert first == (not reentrant, False)
    assert second[1]


def test_transformed_tensors_are_recognized():
    """Breaks: functions that cannot run behind noise would be vectorized."""
    seen = []
    torch.func.vmap(lambda x: seen.append(torch_private.is_transformed(x)) or x)(torch.ones(2))
    assert seen == [True]
    assert not torch_private.is_transformed(torch.ones(2))


@pytest.mark.parametrize("place", [None, 0, 1])
def test_a_function_may_handle_the_axis_of_a_vmap(place):
    """Breaks: every vectorized prediction."""
    x, size = torch.randn(3, 3), 3

    def act(count, at, plain):
        assert (count, at) == (size, place)
        each = plain.expand(size, -1, -1) if at is None else plain.movedim(at, 0)
        return each * torch.arange(size).reshape(-1, *[1] * (each.ndim - 1)), 0

    run = torch.func.vmap(
        lambda i, x: torch_private.outside_vmap(x, act) + i, in_dims=(0, place), out_dims=0
    )
    each = [x if place is None else x.select(place, i) for i in range(size)]
    expected = torch.stack([part * i + i for i, part in enumerate(each)])
    torch.testing.assert_close(run(torch.arange(size), x), expected)
