"""The traced graph of a model: its channels forwards, and what is needed of them backwards."""

import inspect
import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from leanbayes.compression.compaction.channel_rules import (
    BATCH_SIZE,
    FUNCTIONS,
    METHODS,
    MODULES,
    VIEWS,
    BatchNorm,
    Operation,
    works_in_place,
)
from leanbayes.compression.compaction.channels import (
    Channels,
    ChannelSpace,
    UntraceableError,
    ensure,
)
from leanbayes.compression.compaction.cut_layers import LayerWithWeights
from leanbayes.layers import Layer, RandomMap
from leanbayes.torch_private import hooks

IN_USE = "it is in use"
"""Why most channels are kept."""


class _Tracer(fx.Tracer):
    """Layers of leanbayes are not looked into."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        ours = isinstance(m, Layer | RandomMap)
        return ours or super().is_leaf_module(m, module_qualified_name)


@dataclass(frozen=True, eq=False)
class Visit:
    """A layer with weights or a batch norm, where the graph calls it."""

    name: str
    module: LayerWithWeights | nn.Module
    read: Channels | None
    made: Channels

    def lost(self) -> Tensor:
        """Return the removed features whose constants the weights of another one carry."""
        assert isinstance(self.module, LayerWithWeights)
        assert self.read is not None
        rows = self.made.space.root.kept
        return self.module.carried(self.read, rows) & ~self.read.kept_features()


class Graph:
    """Channels of every tensor in a model's forward pass."""

    def __init__(self, model: nn.Module, example: Tensor | None, *, exact: bool) -> None:
        self.model, self.exact = model, exact
        self.steps: list[Visit] = []
        self.barriers: dict[str, str] = {}
        self._known: dict[fx.Node, Any] = {}
        self._nodes = _trace(model, example)
        self._code = _code(self._nodes)
        self._order = {node: i for i, node in enumerate(self._nodes)}
        self._shared = _shared(model, self._nodes)
        self._spaces: list[ChannelSpace] = []
        for node in self._nodes:
            self._known[node] = self._follow(node)

    def _follow(self, node: fx.Node) -> Any:
        """What is known of the output of one operation; one that is not in the table is a stop."""
        if node.op in ("placeholder", "get_attr"):
            return None
        if node.op == "output":
            return self._end(node, "they are outputs of the network")
        if _is_size(node):
            return BATCH_SIZE
        try:
            return self._apply(node)
        except UntraceableError as reason:
            return self._end(node, str(reason))

    def _apply(self, node: fx.Node) -> Any:
        call = self._call(node)
        met = any(isinstance(x, Channels) for x in _flat_arguments(call))
        if met and (works_in_place(call) or call.function is operator.add):
            ensure(not self._read_later(node), "it may write into a tensor that is read again")
        if isinstance(call.function, nn.Module):
            return self._apply_module(node, call)
        if not met:
            return None
        table: Any = METHODS if node.op == "call_method" else FUNCTIONS
        rule = table.get(call.function)
        ensure(rule is not None, "it is not in the table of operations")
        return rule(call)

    def _call(self, node: fx.Node) -> Operation:
        function = node.target
        if node.op == "call_module":
            function = self.model.get_submodule(str(node.target))
        known = self._known
        args = fx.map_arg(node.args, lambda n: known[n] if known[n] is not None else n)
        kwargs = fx.map_arg(node.kwargs, lambda n: known[n] if known[n] is not None else n)
        return Operation(args, kwargs, function)

    def _apply_module(self, node: fx.Node, call: Operation) -> Channels | None:
        module, name = call.function, str(node.target)
        has_hooks = any(kind.startswith("forward") for kind in hooks(module))
        ensure(not has_hooks, "it has forward hooks")
        ensure(name not in self._shared, "it is used in several places")
        weighted = LayerWithWeights.of(module, exact=self.exact)
        if weighted is not None:
            return self._apply_weights(node, name, weighted, call)
        if not any(isinstance(x, Channels) for x in call.args):
            return None
        rule = MODULES.get(type(module))
        ensure(rule is not None, f"{type(module).__name__} is not in the table of operations")
        assert rule is not None
        made = rule(call)
        if isinstance(module, BatchNorm):
            self.steps.append(Visit(name, module, made, made))
        return made

    def _apply_weights(
        self, node: fx.Node, name: str, weighted: LayerWithWeights, call: Operation
    ) -> Channels:
        read: Channels | None = None
        ensure(len(call.args) == 1 and not call.kwargs, "it is called with more than an input")
        if isinstance(call.args[0], Channels):
            read = call.input.with_features(weighted.inputs)
            linear = weighted.rank is None
            meets = read.is_last if linear else read.rank == weighted.rank and not read.last
            ensure(meets, "it does not act on channels")
        linear = weighted.rank is None
        rank = _rank(node) or (read.rank if read is not None and linear else weighted.rank)
        values, constant = weighted.constants(read)
        space = ChannelSpace(weighted.outputs)
        self._spaces.append(space)
        made = Channels(space, values, constant, rank, last=linear).with_values(values)
        self.steps.append(Visit(name, weighted, read, made))
        return made

    def _read_later(self, node: fx.Node) -> bool:
        """Return whether the memory of an operation's first input is read after it."""
        root = node.all_input_nodes[0]
        while self._is_view(root):
            root = root.all_input_nodes[0]
        same = [root]
        for alias in same:
            same += [user for user in alias.users if self._is_view(user)]
        users = (user for alias in same for user in alias.users)
        return any(self._order[user] > self._order[node] for user in users)

    def _is_view(self, node: fx.Node) -> bool:
        """Return whether the output of an operation may have the memory of its input."""
        if node.op == "call_module":
            return type(self.model.get_submodule(str(node.target))) in VIEWS
        return node.target in VIEWS

    def _end(self, node: fx.Node, why: str) -> None:
        """Keep all channels that an operation meets; after it none counts as a constant."""
        inputs = [self._known[source] for source in node.all_input_nodes]
        met = [channels for channels in inputs if isinstance(channels, Channels)]
        last = node.op == "output"
        cause = why if last else f"{_name(node)!r} needs them: {why}"
        for channels in met:
            channels.space.keep(torch.ones(channels.space.root.size, dtype=torch.bool), cause)
            if not last:
                self._forget(channels.space)
        if not last and (met or node.op == "call_module"):
            self.barriers[_name(node)] = why

    def _forget(self, space: ChannelSpace) -> None:
        """Take nothing for a constant any more that may have been written to."""
        for node, known in self._known.items():
            if isinstance(known, Channels) and known.space.root is space.root:
                nothing = torch.zeros_like(known.constant)
                self._known[node] = known.with_values(known.values, nothing)

    def spaces(self) -> Iterator[ChannelSpace]:
        """Yield every space of channels once."""
        return iter({id(space.root): space.root for space in self._spaces}.values())

    def settle(self) -> None:
        """Keep what is needed, and of every space at least one channel."""
        self._settle_joined()
        while True:
            if sum(self._keep_what_is_read(step) for step in self.steps):
                continue
            if sum(self._keep_a_carrier(step) for step in self.steps):
                continue
            empty = [space for space in self.spaces() if not bool(space.kept.any())]
            if not empty:
                return
            first = torch.zeros(empty[0].size, dtype=torch.bool)
            first[0] = True
            empty[0].keep(first, "a layer keeps one unit at least")

    def check_code(self) -> None:
        """Raise if the model, once cut, is traced to other operations: its code read a size."""
        ensure(
            _code(_trace(self.model, None)) == self._code,
            "its code reads sizes of layers, such as out_features, which would change",
        )

    def _settle_joined(self) -> None:
        """What was kept before spaces were joined belongs to what they have become."""
        for space in self._spaces:
            for cause, which in list(space.causes.items()):
                space.root.keep(which, cause)

    def _keep_what_is_read(self, step: Visit) -> bool:
        layer, read = step.module, step.read
        if not isinstance(layer, LayerWithWeights):
            return False
        if layer.op.groups > 1:
            return _keep_whole_groups(step, layer)
        if read is None:
            return False
        rows = step.made.space.root.kept
        needed = (layer.used & ~layer.folds(read.values, read.constant))[rows].any(0)
        needed = needed & ~layer.carried(read, rows)
        changed = False
        for cause, which in _causes(step.name, layer, read, needed):
            changed |= read.space.keep(read.of_features(which), cause)
        return changed

    def _keep_a_carrier(self, step: Visit) -> bool:
        """Of the constants that only weights can carry, keep the largest if no other is kept."""
        layer, read = step.module, step.read
        if not isinstance(layer, LayerWithWeights) or read is None or layer.op.groups > 1:
            return False
        lost = step.lost()
        if not bool(lost.any()) or layer.carrier(read, lost) is not None:
            return False
        sizes = torch.where(lost, read.values.abs(), 0.0)
        first = torch.zeros_like(lost)
        first[sizes.argmax()] = True
        cause = f"for {step.name!r} one carries the constants of those that are gone"
        return read.space.keep(read.of_features(first), cause)


def _causes(
    name: str, layer: LayerWithWeights, read: Channels, which: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """The features that a layer needs, and why it needs those that are constants."""
    yield IN_USE, which & ~read.constant
    if layer.has_border:
        yield f"their constants meet the zero padding of {name!r}", which & read.constant
    elif layer.random_bias:
        yield f"their constants meet the random bias of {name!r}", which & read.constant
    else:
        yield f"their constants meet the random weights of {name!r}", which & read.constant


def _keep_whole_groups(step: Visit, layer: LayerWithWeights) -> bool:
    """A group of a convolution goes if all its outputs and inputs do."""
    groups = layer.op.groups
    made, read = step.made.space, step.read
    outer = torch.ones(groups, dtype=torch.bool)
    if read is not None:
        outer = read.space.root.kept.view(groups, -1).any(1)
    alive = made.root.kept.view(groups, -1).any(1) | outer
    cause = f"their group of {step.name!r} is in use"
    changed = made.keep(alive.repeat_interleave(layer.outputs // groups), cause)
    if read is not None:
        changed |= read.space.keep(alive.repeat_interleave(layer.inputs // groups), cause)
    return changed


def _trace(model: nn.Module, example: Tensor | None) -> list[fx.Node]:
    """The operations of a forward pass in their order; raise a reason if they cannot be known."""
    signature = inspect.signature(model.forward)
    defaults = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    try:
        tracer = _Tracer()
        graph = tracer.trace(model, defaults or None)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UntraceableError(f"it cannot be traced: {reason[0]}") from error
    nodes = list(graph.nodes)
    read = [str(node.target) for node in nodes if node.op == "get_attr"]
    computed = any(name.startswith("_tensor_constant") for name in read)
    ensure(not computed, "its code computes with tensors that are not its parameters")
    if example is not None:
        with torch.no_grad():
            ShapeProp(fx.GraphModule(tracer.root, graph)).propagate(example)
    return nodes


def _code(nodes: list[fx.Node]) -> list[str | None]:
    """Return every operation with its arguments, as text."""
    return [node.format_node() for node in nodes]


def _rank(node: fx.Node) -> int | None:
    seen: Any = node.meta.get("tensor_meta")
    return len(seen.shape) if hasattr(seen, "shape") else None


def _flat_arguments(call: Operation) -> list[Any]:
    flat: list[Any] = []
    fx.node.map_aggregate((tuple(call.args), dict(call.kwargs)), flat.append)
    return flat


def _is_size(node: fx.Node) -> bool:
    """Return whether an operation only asks for the number of examples."""
    if node.op == "call_method" and node.target == "size":
        return node.args[1:] == (0,) and not node.kwargs
    if node.target is getattr:
        return node.args[1] == "shape" and all(_is_size(user) for user in node.users)
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return node.args[0].target is getattr and node.args[1:] == (0,)
    return False


def _name(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name


def _shared(model: nn.Module, nodes: list[fx.Node]) -> set[str]:
    """Return the names of layers with parameters that are used more than once, or from outside.

    That is by two calls, or because another module or the code itself has a parameter of them.
    """
    called = [str(node.target) for node in nodes if node.op == "call_module"]
    calls = Counter(id(model.get_submodule(name)) for name in called)
    owners = Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module.parameters(recurse=False)
    )
    read = [str(n.target) for n in nodes if n.op == "get_attr"]
    shared: set[str] = set()
    for name in called:
        module = model.get_submodule(name)
        own: list[Tensor] = list(module.buffers())
        own += [p for n, p in module.named_parameters() if "prior" not in n.split(".")]
        twice = calls[id(module)] > 1 or any(owners[id(p)] > 1 for p in own)
        outside = any(target.startswith(f"{name}.") for target in read)
        if own and (twice or outside):
            shared.add(name)
    return shared
