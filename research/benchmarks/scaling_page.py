"""Writes docs/scaling.md from the formulas."""

from __future__ import annotations

from pathlib import Path

from leanbayes.saving.files import replace_file
from research.benchmarks.formulas import (
    FAMILIES,
    MODELS,
    Family,
    bytes_sent,
    flops_per_token,
    memory_per_device,
    parameters,
)
from research.publishing.tables import markdown_table

__all__ = ["text", "write"]

DOCS = Path(__file__).parents[2] / "docs"
DEVICES = (8, 64, 256, 1024)
DEVICE_MEMORY = 80
"""Gigabytes of a large accelerator, to say what fits."""
TOKENS = 8192
PLAIN, TIED, RANK1, FREE = FAMILIES


def write(docs: Path) -> Path:
    """Write the page."""
    return replace_file(docs / "scaling.md", text().encode())


def text() -> str:
    """The whole page."""
    parts = (
        "# Scaling to large transformers, on paper",
        conclusions(),
        "`python -m research page bench` writes this page from the formulas in "
        "[`research/benchmarks/formulas.py`](../research/benchmarks/formulas.py); nothing "
        "on it is measured. A test compares the counts with a small transformer that is converted. "
        "`make bench` measures what two cores can.",
        "## Parameters and arithmetic",
        sizes(),
        "FLOPs are those of matrix products in a training step for one token, forward and "
        f"backward, relative to the plain network. One draw of the weights is shared by {TOKENS:,} "
        "tokens on a device and costs the same however many they are; noise for every output "
        "(`local`) pays for every token. The default, `auto`, takes one draw in a transformer, "
        "because a weight meets an example more than once.",
        "## Memory and communication",
        devices(),
        "Gigabytes of one device. *State* is parameters, gradients and Adam's moments; *sent* is "
        "what a device sends in one step.",
        "## Assumptions",
        assumptions(),
        "## FSDP as it runs",
        fsdp(),
    )
    return "\n\n".join(parts) + "\n"


def conclusions() -> str:
    """What follows from the tables."""
    large = MODELS["70 B"]
    tied, free = (parameters(large, family) / parameters(large, PLAIN) for family in (TIED, FREE))
    fits = [_fewest(family) for family in (PLAIN, TIED, RANK1, FREE)]
    local = {f: _relative_flops("7 B", f, local=True) for f in (TIED, FREE)}
    needed = memory_per_device(parameters(MODELS["7 B"], TIED), 1, "DDP") / 1e9
    return "\n".join(
        (
            "**A k-tied or rank-1 transformer is trained on the machines that train the plain one; "
            "a mean-field transformer needs twice of everything that is stored or sent.**",
            "",
            f"- Tied scales add {100 * (tied - 1):.2g} % to the parameters of the 70 B model, and "
            f"so to optimiser state and communication; mean field adds {100 * (free - 1):.0f} %.",
            f"- Under FSDP the 70 B model's state fits devices of {DEVICE_MEMORY} GB from "
            f"{fits[0]} of them on when plain, {fits[1]} when k-tied, {fits[2]} with rank-1 "
            f"factors, and {fits[3]} with mean field.",
            f"- The 7 B model has to be sharded: under DDP it takes {needed:.0f} GB on every "
            "device, tied or plain.",
            "- With one draw of the weights, arithmetic hardly grows for any family. With noise "
            f"for every output mean field takes {local[FREE]:.2f} times the products of the plain "
            f"7 B model, k-tied {local[TIED]:.3f} times.",
        )
    )


def _fewest(family: Family) -> int:
    """Devices, in powers of two, whose memory holds the shards of the largest model."""
    count, number = parameters(MODELS["70 B"], family), 1
    while memory_per_device(count, number, "FSDP") > DEVICE_MEMORY * 1e9:
        number *= 2
    return number


def _relative_flops(model: str, family: Family, *, local: bool) -> float:
    ours = flops_per_token(MODELS[model], family, local=local, tokens=TOKENS)
    return ours / flops_per_token(MODELS[model], PLAIN)


def sizes() -> str:
    """A row for every model and family."""
    rows = []
    for name, model in MODELS.items():
        for family in FAMILIES:
            count = parameters(model, family)
            flops = (_relative_flops(name, family, local=local) for local in (False, True))
            cells = (f"{each:.4f}" for each in flops) if family is not PLAIN else ("1", "1")
            more = f"{100 * (count / parameters(model, PLAIN) - 1):.2f} %"
            state = f"{2 * 4 * count / 1e9:,.1f}"
            rows.append((name, family.name, f"{count / 1e9:,.3f}", more, state, *cells))
    headings = ("model", "posterior", "parameters, billions", "more than plain")
    return markdown_table(
        (*headings, "optimiser state, GB", "FLOPs, one draw", "FLOPs, `local`"), rows, text=2
    )


def devices() -> str:
    """A row for every model, family and strategy, a pair of columns for every number of devices."""
    rows = []
    for name, model in MODELS.items():
        for family in FAMILIES:
            count = parameters(model, family)
            for strategy in ("DDP", "FSDP"):
                cells = [
                    f"{_gigabytes(memory_per_device(count, n, strategy))} · "
                    f"{_gigabytes(bytes_sent(count, n, strategy))}"
                    for n in DEVICES
                ]
                rows.append((name, family.name, strategy, *cells))
    columns = (f"{n} devices: state · sent" for n in DEVICES)
    return markdown_table(("model", "posterior", "strategy", *columns), rows, text=3)


def _gigabytes(count: float) -> str:
    """With three digits, or all before the point."""
    return f"{count / 1e9:,.0f}" if count >= 100e9 else f"{count / 1e9:.3g}"


def assumptions() -> str:
    """What the formulas leave out, and what they take for granted."""
    shapes = "; ".join(
        f"{name}: {m.layers} blocks of width {m.width:,}, {m.context:,} positions, "
        f"{parameters(m, PLAIN) / 1e9:.3g} billion parameters"
        for name, m in MODELS.items()
    )
    return "\n".join(
        (
            f"- The models have the shape of GPT-2 ({shapes}): 50,257 tokens, hidden layers four "
            "times as wide. The output layer has weights of its own; the 124 million of GPT-2 "
            "itself are without them.",
            "- Every matrix is converted, look-up tables included. Biases and normalisation stay "
            "as they are; a rank-1 mixture has biases for every member.",
            "- Parameters, gradients and Adam's two moments are float32: 16 bytes a parameter. "
            "Activations are left out; `local` keeps more of them than the plain network.",
            "- DDP keeps everything on every device and reduces gradients (twice the parameters "
            "over the network). FSDP shards everything, gathers parameters forward and backward, "
            "and reduces gradients (three times). Rings send (n − 1)/n of that.",
            "- The KL is not counted: once a step it passes over the parameters, for tied scales "
            "with one more product of their factors. Nor are random numbers: one for every weight "
            "and draw, with `local` one for every output and token.",
            "- Every member of a rank-1 mixture sees the batch: for the same tokens a member, 4 "
            "members take 4 times the arithmetic of the table.",
        )
    )


def fsdp() -> str:
    """What has to be known to shard a converted model."""
    return (
        "`fully_shard(model)` works as for a plain network: a step on two processes equals that "
        "of one ([test](../tests/models/test_fsdp.py)). It gathers the whole model at once, so "
        "large models shard every layer. Then tell FSDP "
        'that a layer\'s KL needs its parameters: `register_fsdp_forward_method(layer, "kl")` for '
        "every layer of `lb.extend.random_maps(model)`. The KL then gathers them again, on top of "
        "the "
        "three times above."
    )
