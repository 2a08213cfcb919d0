"""References: layers that a model reaches past its module tree, and where each of them is kept.

Torch registers a layer that is an attribute of a module. Code may keep the same layer in lists,
dictionaries, tuples, sets and objects, where it is replaced as well. It cannot be replaced inside
functions, ``functools.partial`` and bound methods.
"""

import copy
import dis
import functools
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import setitem
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
Put = Callable[[Any], object]

_EMPTY = vars(nn.Module())
_REGISTERED = {n for n, v in _EMPTY.items() if isinstance(v, dict) and not n.endswith("_hooks")}
"""Where a module keeps its parameters, buffers and children."""
_CHILDREN = next(n for n, v in vars(nn.Sequential(nn.Module())).items() if v != _EMPTY[n])
_NUMBERS = (int, float, complex, torch.dtype, torch.device, torch.Generator, torch.Size)
_LEAVES = (NoneType, str, bytes, type, ModuleType, torch.optim.Optimizer, *_NUMBERS)
"""What leads to no layer; an optimizer keeps parameters, and it is rebuilt for a new model."""


class Reference(NamedTuple):
    """Where a module, or a parameter, is kept outside the module tree.

    Attributes:
        value: the module or parameter.
        path: path as Python would write it: ``decoder.order[0]``.
        holder: object that keeps it there (``"a function"``, …); empty for data.
        put: puts another value there; ``None`` where that is impossible.
    """

    value: Any
    path: str
    holder: str = ""
    put: Put | None = None


def references(
    model: nn.Module, wanted: Collection[int], without: Collection[int] = ()
) -> Iterator[Reference]:
    """Yield every way from a model to some objects outside its module tree.

    Args:
        model: the model.
        wanted: the ``id`` of the modules and parameters that are looked for.
        without: the ``id`` of modules of the tree whose own attributes are not looked at.
    """
    tree = {id(module) for module in model.modules()}
    seen: set[int] = set()
    queue = deque(_roots(model, without))
    while queue:
        place = queue.popleft()
        value = place.value
        if id(value) in wanted:
            yield place
        elif id(value) not in tree and not isinstance(value, Tensor):
            if not isinstance(value, tuple | frozenset):  # which are made anew at every place
                if id(value) in seen:
                    continue
                seen.add(id(value))
            queue.extend(p for p in _inside(place) if not isinstance(p.value, _LEAVES))


def replaceable(model: nn.Module, layers: Mapping[nn.Module, str]) -> list[Reference]:
    """Return the references to layers that are to be exchanged; raise if one could not follow."""
    parts = {id(part): name for layer, name in layers.items() for part in layer.modules()}
    weights = {id(p): name for layer, name in layers.items() for p in layer.parameters()}
    whole = {id(layer) for layer in layers}
    followed = []
    for reference in references(model, parts | weights, without=parts):
        place = id(reference.value)
        if place not in whole or reference.put is None:
            kind = "" if place in whole else "a part of " if place in parts else "a weight of "
            raise ValueError(_kept(reference, f"{kind}layer {(parts | weights)[place]!r}"))
        followed.append(reference)
    tree = {id(module) for module in model.modules()}
    for layer, name in layers.items():
        others = tree - {id(part) for part in layer.modules()}
        for path in (reference.path for reference in references(layer, others)):
            raise ValueError(
                f"layer {name!r} keeps a part of the model in its attribute {path!r}, which "
                "would be lost; keep it in the module that owns both"
            )
    return followed


def check_copy(copied: nn.Module, originals: Iterable[nn.Module], remedy: str) -> None:
    """Raise if a copy of a model still reaches modules of the original.

    Functions are not copied: one that closes over ``self`` goes on calling the original.
    """
    for reference in references(copied, {id(module) for module in originals}):
        holder = f" ({reference.holder})" if reference.holder else ""
        raise ValueError(
            f"a copy of the model would go on using the original through {reference.path!r}"
            f"{holder}; {remedy}"
        )


def _kept(reference: Reference, what: str) -> str:
    holder = f" ({reference.holder})" if reference.holder else ""
    return (
        f"{what} is also reached past the module tree, through {reference.path!r}{holder}, which "
        "would go on using the old one; let the code that needs it read it from the module that "
        "owns it, or leave the layer out"
    )


def _roots(model: nn.Module, without: Collection[int]) -> Iterator[Reference]:
    """The attributes of every module of the tree, and the methods of its classes."""
    classes: dict[type, None] = {}
    for name, module in model.named_modules():
        if id(module) not in without:
            classes.update(dict.fromkeys(type(module).__mro__))
            for attribute, value in vars(module).items():
                if attribute not in _REGISTERED and not isinstance(value, _LEAVES):
                    path = f"{name}.{attribute}" if name else attribute
                    yield Reference(value, path, "", _setter(vars(module), attribute))
    for owner in classes:
        if not owner.__module__.startswith(("torch.", "builtins", "leanbayes.")):
            for attribute, value in vars(owner).items():
                if attribute != "__init__" and not isinstance(value, _LEAVES):
                    yield Reference(value, f"{owner.__name__}.{attribute}")


def _setter(mapping: dict[Any, Any], key: Any) -> Put:
    return functools.partial(setitem, mapping, key)


def _inside(place: Reference) -> Iterator[Reference]:
    """What a value keeps."""
    value, path = place.value, place.path
    if isinstance(value, dict):
        for key, item in list(value.items()):
            shown = repr(key) if isinstance(key, str | int) else type(key).__name__
            yield Reference(item, f"{path}[{shown}]", "", _setter(value, key))
            yield Reference(key, f"{path}[{shown}]", "", functools.partial(_rename, value, key))
    elif isinstance(value, list | deque):
        for i, item in _branches(value):
            yield Reference(item, f"{path}[{i}]", "", functools.partial(setitem, value, i))
    elif isinstance(value, set):
        for item in list(value):
            yield Reference(item, path, "", functools.partial(_swap, value, item))
    elif isinstance(value, tuple | frozenset):
        yield from _frozen_items(place)
    else:
        yield from (Reference(item, path, holder) for item, holder in _held(value))
        yield from _attributes(value, path)


def _branches(items: Iterable[Any]) -> list[tuple[int, Any]]:
    """Return the items that may lead to a layer, numbered; most lists are long lists of leaves."""
    return [(i, item) for i, item in enumerate(items) if not isinstance(item, _LEAVES)]


def _rename(mapping: dict[Any, Any], old: Any, new: Any) -> None:
    items = [(new if key is old else key, item) for key, item in mapping.items()]
    mapping.clear()
    mapping.update(items)


def _swap(items: set[Any], old: Any, new: Any) -> None:
    items.remove(old)
    items.add(new)


def _frozen_items(place: Reference) -> Iterator[Reference]:
    """The items of a tuple or frozen set; another item makes another tuple where it stands."""
    value = place.value
    branches = _branches(value)
    items = list(value) if branches else []

    def put(i: int, new: Any) -> None:
        assert place.put is not None
        items[i] = new
        place.put(value._make(items) if hasattr(value, "_make") else type(value)(items))

    for i, item in branches:
        setter = None if place.put is None else functools.partial(put, i)
        yield Reference(item, f"{place.path}[{i}]", place.holder, setter)


def _held(value: Any) -> Iterator[tuple[Any, str]]:
    """What a function or something like it keeps for its calls."""
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        yield from ((item, "a function") for item in (*cells, *defaults, *_global_modules(value)))
    elif isinstance(value, MethodType):
        yield from ((item, "a bound method") for item in (value.__self__, value.__func__))
    elif isinstance(value, functools.partial):
        arguments = (value.func, *value.args, *value.keywords.values())
        yield from ((item, "a functools.partial") for item in arguments)
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__, "a function"
    elif isinstance(value, property):
        yield from ((item, "a property") for item in (value.fget, value.fset))
    elif isinstance(value, weakref.ref):
        yield value(), "a weak reference"


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _global_modules(function: FunctionType) -> list[nn.Module]:
    """Return the modules among the global variables that a function reads."""
    scope, code = function.__globals__, function.__code__
    if not any(isinstance(scope.get(name), nn.Module) for name in code.co_names):
        return []
    read = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return [scope[name] for name in sorted(read) if isinstance(scope.get(name), nn.Module)]


def _attributes(value: Any, path: str) -> Iterator[Reference]:
    """The attributes of an object, or of a module that is not registered."""
    attributes = getattr(value, "__dict__", None)
    attributes = attributes if isinstance(attributes, dict) else {}
    for name, item in list(attributes.items()):
        if name == _CHILDREN:
            for child, part in list(item.items()):
                yield Reference(part, f"{path}.{child}", "", _setter(item, child))
        else:
            yield Reference(item, f"{path}.{name}", "", _setter(attributes, name))
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                put = functools.partial(object.__setattr__, value, name)
                yield Reference(getattr(value, name), f"{path}.{name}", "", put)


def parents(name: str) -> list[str]:
    """Yield the names of the modules around a dotted name, the nearest first."""
    parts = name.split(".")
    return [".".join(parts[:i]) for i in reversed(range(len(parts)))] if name else []


def copy_model(
    model: M, names: Iterable[str], remedy: str, shared: Iterable[nn.Parameter] = ()
) -> M:
    """Return a copy that uses neither the layers with these names nor the modules around them.

    It shares some parameters with the model, those of layers that will be exchanged: their weights
    are not copied twice.
    """
    copied = copy.deepcopy(model, {id(parameter): parameter for parameter in shared})
    exchanged = {place for name in names for place in (name, *parents(name))}
    check_copy(copied, [model.get_submodule(name) for name in exchanged], remedy)
    return copied


@torch.no_grad()
def separate(model: nn.Module, shared: Iterable[nn.Parameter]) -> None:
    """Give the parameters that a layer took as they were separate memory."""
    taken = {parameter.untyped_storage().data_ptr() for parameter in shared} - {0}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.untyped_storage().data_ptr() in taken:
                copied = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                module.register_parameter(name, copied)


def forbid_tied_weights(model: nn.Module, chosen: Collection[nn.Module]) -> None:
    """Refuse a parameter of several layers, which would become several posteriors."""
    owners: dict[nn.Parameter, tuple[nn.Module, str]] = {}
    layers: dict[str, nn.Module] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        around = layers.get(name.rpartition(".")[0])
        layers[name] = module if around is None or around not in chosen else around
        for parameter in module.parameters(recurse=False):
            layer, other = owners.setdefault(parameter, (layers[name], name))
            if layer is not layers[name] and (layer in chosen or layers[name] in chosen):
                raise ValueError(
                    f"layers {other!r} and {name!r} share one weight, which cannot be converted on "
                    f"one side only; exclude both with exclude=[{other!r}, {name!r}], or give each "
                    "its own weight"
                )
