"""Blocks of docs/scaling.md, from the formulas."""

from __future__ import annotations

from pathlib import Path

from leanbayes.errors import choose
from research.benchmarks.formulas import (
    FAMILIES,
    MODELS,
    Family,
    bytes_sent,
    flops_per_token,
    memory_per_device,
    parameters,
)
from research.publishing.pages import Makers, refresh
from research.publishing.tables import markdown_table

DEVICES = (8, 64, 256, 1024)
DEVICE_MEMORY = 80
"""Gigabytes of a large accelerator, to say what fits."""
TOKENS = 8192
PLAIN, TIED, RANK1, FREE = FAMILIES


def makers() -> Makers:
    """Return what makes the blocks of docs/scaling.md."""
    blocks = {"conclusions": conclusions, "sizes": sizes, "devices": devices, "models": models}
    return {"scaling": lambda name: choose("block", name, blocks)()}


def write(docs: Path) -> Path:
    """Update the page."""
    return refresh(docs / "scaling.md", makers())


def conclusions() -> str:
    """Return what follows from the tables."""
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
            f"- Tied scales add {100 * (tied - 1):.2g}% to the parameters of the 70 B model, and "
            f"so to optimizer state and communication; mean field adds {100 * (free - 1):.0f}%.",
            f"- Under FSDP the state of the 70 B model needs this many devices of {DEVICE_MEMORY} "
            f"GB: {fits[0]} (plain), {fits[1]} (k-tied), {fits[2]} (rank-1 factors), {fits[3]} "
            "(mean field).",
            f"- The 7 B model has to be sharded: under DDP it takes {needed:.0f} GB on every "
            "device, tied or plain.",
            "- With one draw of the weights, arithmetic hardly grows for any family. With noise "
            f"for every output mean field takes {local[FREE]:.2f} times the products of the plain "
            f"7 B model, k-tied {local[TIED]:.3f} times.",
        )
    )


def _fewest(family: Family) -> int:
    """Return devices, in powers of two, whose memory holds the shards of the largest model."""
    count, number = parameters(MODELS["70 B"], family), 1
    while memory_per_device(count, number, "FSDP") > DEVICE_MEMORY * 1e9:
        number *= 2
    return number


def _relative_flops(model: str, family: Family, *, local: bool) -> float:
    ours = flops_per_token(MODELS[model], family, local=local, tokens=TOKENS)
    return ours / flops_per_token(MODELS[model], PLAIN)


def sizes() -> str:
    """Return a row for every model and family."""
    rows = []
    for name, model in MODELS.items():
        for family in FAMILIES:
            count = parameters(model, family)
            flops = (_relative_flops(name, family, local=local) for local in (False, True))
            cells = (f"{each:.4f}" for each in flops) if family is not PLAIN else ("1", "1")
            more = f"{100 * (count / parameters(model, PLAIN) - 1):.2f}%"
            state = f"{2 * 4 * count / 1e9:,.1f}"
            rows.append((name, family.name, f"{count / 1e9:,.3f}", more, state, *cells))
    headings = ("model", "posterior", "parameters, billions", "more than plain")
    return markdown_table(
        (*headings, "optimizer state, GB", "FLOPs, one draw", "FLOPs, `local`"), rows, text=2
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


def models() -> str:
    """Return the shapes of the models."""
    shapes = "; ".join(
        f"{name}: {m.layers} blocks of width {m.width:,}, {m.context:,} positions, "
        f"{parameters(m, PLAIN) / 1e9:.3g} billion parameters"
        for name, m in MODELS.items()
    )
    return f"The models have the shape of GPT-2. {shapes}."
