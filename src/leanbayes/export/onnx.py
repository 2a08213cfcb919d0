"""Export to ONNX: the mean network, or samples and their summary."""

import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from leanbayes.errors import require, require_choice, require_count
from leanbayes.export.graph import OutputGraph, OutputSpec, PassNoise, rename_values, scan_passes
from leanbayes.export.noise import Lifted
from leanbayes.export.tracing import (
    sized,
    traced_moments,
    traced_pass,
    traced_prediction,
    without_torch_warnings,
)
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.prediction.inputs import Reader
from leanbayes.prediction.one_pass.propagate import output_noise
from leanbayes.prediction.predict import Method, predict
from leanbayes.saving.files import replace_file

_PACKAGES = ("onnx", "onnxscript")
_LARGEST = 2**31 - 1


def export_onnx(
    model: nn.Module,
    x: Tensor | tuple[Tensor, ...],
    path: str | os.PathLike[str],
    *,
    method: Method = "samples",
    samples: int | None = 20,
    noise: Literal["graph", "input"] = "graph",
    likelihood: Likelihood | None = None,
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    batch_dim: int | Sequence[int] = 0,
) -> Path:
    """Write a model as an ONNX file that returns uncertainty, for batches of any size.

    Inputs are ``x`` (``x_0``, ``x_1``, … if there are several). Classes have the outputs
    ``probabilities``, ``entropy`` and ``mutual_information``; numbers have ``mean``,
    ``standard_deviation``, ``aleatoric``, ``epistemic`` (variances) and, where noise is normal,
    ``quantiles [levels, batch, …]``. They are what a :class:`~leanbayes.Prediction` of as many
    samples says, each pass with separate noise; only a single pass of the network is in the file.

    ``noise="input"`` adds the inputs ``noise [samples, batch, n]`` and ``weight_noise [samples,
    m]``, where the model needs them: independent unit normals. The same ones give the same
    answers. With ``noise="graph"`` the runtime draws new ones at every call.

    With ``method="moments"`` the file has means and variances of all activations instead of noise:
    it is what :func:`~leanbayes.predict` with this method returns, the same at every call.

    Args:
        model: any model, converted or not; it is left as it was.
        x: example inputs, one or more, or a tuple if the model takes several inputs.
        path: the file.
        method: ``"samples"``, or ``"moments"``, which a model with a part without a rule refuses.
        samples: number of draws (of every member), with moments those of the outputs; ``None`` for
            the mean network: one pass (of every member) without noise.
        noise: source of the noise.
        likelihood: likelihood of the outputs; categorical if not given.
        quantiles: their levels, none for none.
        batch_dim: dimension of the inputs that counts examples, or one for each of them.

    Returns:
        The path of the file.

    Raises:
        ImportError: If the extra ``onnx`` is not installed.

    Example:
        >>> import leanbayes as lb, tempfile
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Normal(1.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export_onnx(model, torch.randn(1, 3), Path(folder) / "m.onnx").name
        'm.onnx'
    """
    spec = OutputSpec(likelihood or Categorical(), tuple(quantiles))
    options: dict[str, Any] = {"samples": samples, "noise": noise, "batch_dim": batch_dim}
    return write_onnx(onnx_model(model, x, spec, method=method, **options), Path(path))


def onnx_model(
    model: nn.Module,
    x: Tensor | tuple[Tensor, ...],
    spec: OutputSpec,
    *,
    method: Method = "samples",
    samples: int | None,
    noise: str = "graph",
    batch_dim: int | Sequence[int] = 0,
) -> Any:
    """Return what :func:`export_onnx` writes, as a value of the package onnx."""
    _check_packages()
    require_choice("noise", noise, ("graph", "input"))
    require_choice("method", method, get_args(Method))
    if samples is not None:
        require_count("samples", samples, 1)
    inputs, dims = _read(model, x, batch_dim)
    require(inputs[0].shape[dims[0]] > 0, "x has no examples; give one or more")
    names = ["x"] if len(inputs) == 1 else [f"x_{i}" for i in range(len(inputs))]
    if method == "moments":
        return _of_moments(model, inputs, dims, spec, samples, names)
    outputs = predict(model, inputs, samples=1, batch_dim=dims, seed=0).samples
    inputs = sized(inputs, dims)
    lifted = traced_pass(model, inputs, dims, noisy=samples is not None)
    source = _source(lifted, samples, noise)
    answers = OutputGraph(spec, outputs, stacked=source is not None)
    program = traced_prediction(lifted, answers, inputs, dims, samples or 1)
    if source is None:
        whole = _converted(program, names, answers.names)
    else:
        inner = [*names, *source.of_pass, "samples"], ["outputs", *answers.names]
        whole = _converted(program, *inner)
        scan_passes(whole, source, names[0], dims[0])
    return _annotated(whole, samples, answers)


def _of_moments(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    dims: tuple[int, ...],
    spec: OutputSpec,
    samples: int | None,
    names: Sequence[str],
) -> Any:
    require(
        samples is not None,
        'samples must be a number with method="moments", got None. Leave method out for the mean '
        "network",
    )
    p = predict(model, inputs, method="moments", samples=samples, batch_dim=dims)
    require(p.fallback is None, f'method must be "samples", because {p.fallback}')
    assert samples is not None
    assert p.moments is not None
    answers = OutputGraph(spec, p.samples, stacked=False)
    noise = output_noise(p.moments, samples)
    program = traced_moments(model, answers, sized(inputs, dims), dims, noise)
    return _annotated(_converted(program, names, answers.names), samples, answers)


def _annotated(model: Any, samples: int | None, answers: OutputGraph) -> Any:
    levels = json.dumps(answers.spec.levels if "quantiles" in answers.names else [])
    annotate(model, {"samples": str(samples or 0), "quantiles": levels})
    return model


def _read(
    model: nn.Module, x: object, batch_dim: int | Sequence[int]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Return the inputs, and which dimension of each counts examples."""
    if not isinstance(x, Tensor | tuple):
        raise TypeError(f"x is a {type(x).__name__}; give a tensor, or a tuple of tensors")
    (read,) = Reader(model, batch_dim).batches(x)
    return read.tensors, read.dims


def _source(lifted: Lifted, samples: int | None, noise: str) -> PassNoise | None:
    """Return the noise of all passes; ``None`` where one pass without noise says everything."""
    if not lifted.numbers + lifted.shared:
        return None
    if samples is None:
        raise ValueError(
            "the mean network still draws noise, as MC dropout does; give samples, or export the "
            "network with its plain dropout layers"
        )
    return PassNoise(samples, lifted.numbers, lifted.shared, lifted.dtype, noise == "input")


def _converted(program: ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """A program as a model of the package onnx, whose inputs and outputs have these names."""
    with without_torch_warnings():
        made = torch.onnx.export(program, dynamo=True, verbose=False)
    assert made is not None
    model = made.model_proto
    for value in (*model.graph.input, *model.graph.output):
        value.ClearField("metadata_props")
    traced = [value.name for value in (*model.graph.input, *model.graph.output)]
    rename_values(model.graph, dict(zip(traced, (*inputs, *outputs), strict=True)))
    for node in model.graph.node:
        node.ClearField("metadata_props")
    model.graph.ClearField("value_info")
    for value in (*model.graph.input, *model.graph.output):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_param = "batch"
    return model


def _check_packages() -> None:
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise ImportError(
                f"ONNX files need {package}; run: pip install 'leanbayes[onnx]'", name=package
            )


def annotate(model: Any, notes: Mapping[str, str]) -> None:
    """Keep texts in a model, where a session's ``get_modelmeta`` finds them."""
    for key, value in notes.items():
        model.metadata_props.add(key=key, value=value)


def write_onnx(model: Any, path: Path) -> Path:
    """Write a file, whole or not at all."""
    require(
        model.ByteSize() <= _LARGEST,
        f"{path} would have {model.ByteSize() / 1e9:.1f} GB, and an ONNX file holds 2 GB at most; "
        "export a smaller network",
    )
    return replace_file(path, model.SerializeToString())
