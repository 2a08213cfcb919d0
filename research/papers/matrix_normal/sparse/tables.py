"""Tables of sparse networks, with what the paper prints beside them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from leanbayes.analysis.sparsity import thousands
from research.papers.matrix_normal.sparse.files import Study, family, title
from research.papers.matrix_normal.sparse.published import TABLE_1, TABLE_2, Printed
from research.publishing.cells import Cell, averaged, seeds_of
from research.publishing.paper_blocks import NOT_RUN
from research.publishing.tables import markdown_table

Named = Mapping[str, Sequence[Study]]
_NOT_RUN = "not yet run"
NETWORKS = {"bayesian": "Bayesian", "plain": "its means alone"}
"""Kinds of networks that are made smaller."""
_KINDS = {"weights": "single weights", "columns": "inputs", "rows": "outputs"}


def numbers(studies: Sequence[Study]) -> dict[str, Cell]:
    """Return what claims and tables say of a recipe, over its seeds.

    Shares and accuracies lie between 0 and 1; ``zeroed`` is the accuracy after zeroing weights,
    ``zeroed_rows`` that after zeroing rows alone, ``zeroed_columns`` that of columns, and
    ``compression`` how many times fewer weights are left.
    """

    def over(value: Callable[[Study], Any]) -> Cell:
        found = [value(study) for study in studies]
        scores = [one if isinstance(one, Mapping) else {"value": one} for one in found]
        return averaged(
            [score.get("value") for score in scores], [score.get("error") for score in scores]
        )

    whole = {
        name: over(lambda study, name=name: study["whole"].get(name, {}))  # type: ignore[misc]
        for name in ("accuracy", "nll", "negative_elbo", "kl")
    }
    return {
        **whole,
        "left": over(lambda study: _share(_layers(study, "weights"))),
        "compression": over(lambda study: 1 / max(_share(_layers(study, "weights")), 1e-9)),
        "zeroed": over(lambda study: study["groups"]["weights"].get("accuracy", {})),
        "rows": over(lambda study: _share(_layers(study, "rows"))),
        "columns": over(lambda study: _share(_layers(study, "columns"))),
        "zeroed_rows": over(lambda study: study["groups"]["rows"].get("accuracy", {})),
        "zeroed_columns": over(lambda study: study["groups"]["columns"].get("accuracy", {})),
        "weights": over(lambda study: sum(left for left, _ in _layers(study, "weights"))),
        "correlation": over(_correlation),
    }


def _correlation(study: Study) -> float:
    """Return the total correlation of all layers, for each training image as the KL is."""
    total = sum(layer["total_correlation"] for layer in study["noise"].values())
    return max(0.0, total / float(study["data_size"]))


def noise_table(named: Named) -> str:
    """Return how far weights scatter and how much they are correlated, by family."""
    known = [study for studies in named.values() for study in studies]
    layers = list(known[0]["noise"]) if known else []
    header = ["posterior", *(f"median σ of {layer}" for layer in layers)]
    lines = []
    for name, studies in named.items():
        if not studies:
            lines.append([family(name), *["–"] * len(layers), _NOT_RUN, "–"])
            continue
        scales = [averaged([s["noise"][layer]["scale"] for s in studies]).ours for layer in layers]
        of = numbers(studies)
        nats = f"{of['correlation'].ours:.4f}"
        lines.append([family(name), *(f"{scale:.4f}" for scale in scales), str(of["kl"]), nats])
    return markdown_table([*header, "KL", "total correlation"], lines)


def _layers(study: Study, kind: str) -> list[tuple[int, int]]:
    return list(study["groups"][kind]["layers"].values())


def _convolutions(study: Study, kind: str) -> list[tuple[int, int]]:
    """Return layers of which the paper prints percentages: all but the dense one."""
    layers = study["groups"][kind]["layers"]
    return [pair for name, pair in layers.items() if name != "dense"]


def _share(layers: Sequence[tuple[int, int]]) -> float:
    return sum(left for left, _ in layers) / sum(of for _, of in layers)


def families_table(named: Named) -> str:
    """Return accuracy, bound and compression of every family, as Figures 1 to 5 show them."""
    header = ["posterior", "run", "accuracy, %", "NLL", "−ELBO", "weights left, %", "compression"]
    groups = ["outputs left, %", "inputs left, %"]
    return markdown_table(
        [*header, "accuracy after zeroing, %", *groups],
        ([family(name), *_family(studies)] for name, studies in named.items()),
    )


def _family(studies: Sequence[Study]) -> list[str]:
    if not studies:
        return [_NOT_RUN, *["–"] * 8]
    of = numbers(studies)
    return [
        _run(studies),
        str(of["accuracy"].percent()),
        str(of["nll"]),
        str(of["negative_elbo"]),
        str(of["left"].percent()),
        str(of["compression"]),
        str(of["zeroed"].percent()),
        str(of["rows"].percent()),
        str(of["columns"].percent()),
    ]


def _run(studies: Sequence[Study]) -> str:
    seeds = seeds_of([study["seed"] for study in studies])
    return f"{studies[0]['epochs']} epochs, {seeds}"


def sweep_table(named: Named) -> str:
    """Return what is left and how good that is, threshold by threshold: means over seeds."""
    known = [study for studies in named.values() for study in studies]
    alphas = sorted({point["log_alpha"] for study in known for point in study["sweep"]})
    header = ["network", "", *(f"log α < {alpha:g}".replace("-", "−") for alpha in alphas)]
    lines = [line for name, studies in named.items() for line in _swept(name, studies, alphas)]
    return markdown_table(header, lines)


def _swept(name: str, studies: Sequence[Study], alphas: Sequence[float]) -> Iterator[list[str]]:
    if not studies:
        yield [title(name), _NOT_RUN, *["–"] * len(alphas)]
        return
    points = [[_point(study, alpha) for study in studies] for alpha in alphas]
    left = [
        averaged([p["weights"][0] / p["weights"][1] for p in at if p is not None]) for at in points
    ]
    right = [
        averaged(
            [p.get("accuracy", {}).get("value") for p in at if p is not None],
            [p.get("accuracy", {}).get("error") for p in at if p is not None],
        )
        for at in points
    ]
    yield [title(name), "weights left, %", *(str(cell.percent()) for cell in left)]
    yield ["", "accuracy, %", *(str(cell.percent()) for cell in right)]


def _point(study: Study, alpha: float) -> Mapping[str, Any] | None:
    return next((point for point in study["sweep"] if point["log_alpha"] == alpha), None)


def printed_table_1(named: Named) -> str:
    """Return weights left of the VGG-like network, printed and here [matrix normal, Table 1]."""
    header = ["posterior", "", "weights left", "dropped in conv1 to conv12, %"]
    lines = []
    for name, printed in TABLE_1.items():
        lines += [[family(name), *_line("printed", printed)]]
        lines += [["", *_line("here", _ours(study, "weights"))] for study in named.get(name, ())]
        lines += [["", "here", _NOT_RUN, "–"]] * (not named.get(name))
    return markdown_table(header, lines)


def printed_table_2(named: Named) -> str:
    """Return what is left of the network of twice the width [matrix normal, Table 2]."""
    header = ["zeroed", "", "left", "dropped in conv1 to conv12, %"]
    lines = []
    for kind, printed in TABLE_2.items():
        lines += [[_KINDS[kind], *_line("printed", printed)]]
        for name, studies in named.items():
            label = f"here, {family(name)}"
            lines += [["", *_line(label, _ours(study, kind))] for study in studies]
            lines += [["", label, _NOT_RUN, "–"]] * (not studies)
    return markdown_table(header, lines)


def _ours(study: Study, kind: str) -> Printed:
    """As the paper counts: the dense layer is in the total of weights, and nowhere else."""
    layers = _convolutions(study, kind)
    dropped = "-".join(f"{100 * (of - left) / of:.0f}" for left, of in layers)
    counted = _layers(study, kind) if kind == "weights" else layers
    return Printed(sum(left for left, _ in counted), sum(of for _, of in counted), dropped)


def _line(label: str, line: Printed) -> list[str]:
    return [label, f"{thousands(line.left)} of {thousands(line.of)}", line.dropped]


def groups_table(named: Named) -> str:
    """Return what is left of outputs alone or inputs alone, and the accuracy."""
    header = ["network", "run", "accuracy, %", "outputs left, %", "accuracy without the others, %"]
    lines = []
    for name, studies in named.items():
        if not studies:
            lines.append([title(name), _NOT_RUN, *["–"] * 5])
            continue
        of = numbers(studies)
        columns = ("accuracy", "rows", "zeroed_rows", "columns", "zeroed_columns")
        run = seeds_of([study["seed"] for study in studies])
        lines.append([title(name), run, *(str(of[column].percent()) for column in columns)])
    return markdown_table([*header, "inputs left, %", "accuracy without the others, %"], lines)


def layers_table(named: Named) -> str:
    """Return what is left of every layer at log α = 3: single weights, outputs, inputs."""
    (studies,) = named.values()
    header = ["layer", "weights", "dropped", "rows (outputs)", "dropped", "columns (inputs)"]
    if not studies:
        return NOT_RUN
    groups = studies[0]["groups"]
    lines = []
    for name in groups["weights"]["layers"]:
        line = [name]
        for kind in ("weights", "rows", "columns"):
            left, of = groups[kind]["layers"][name]
            line += [f"{thousands(left)} of {thousands(of)}", f"{100 * (of - left) / of:.0f}%"]
        lines.append(line)
    told = f"{title(studies[0]['name'])}, {seeds_of([studies[0]['seed']])}:"
    return f"{told}\n\n{markdown_table([*header, 'dropped'], lines)}"


def network_table(studies: Sequence[Study]) -> str:
    """Return sizes and accuracy of a compacted network, threshold by threshold."""
    if not studies:
        return NOT_RUN
    header = ["network", "zeroed from log α", "multiply-adds", "fewer by", "parameters"]
    lines = [
        line
        for kind, label in NETWORKS.items()
        for line in ([label, *_whole(studies[0], kind)], *_smaller(studies[0], kind))
    ]
    return markdown_table([*header, "accuracy, %", "points lost"], lines)


def _whole(study: Study, kind: str) -> list[str]:
    """Return the network as it was trained."""
    counts = study["sweep"][0][kind]["multiply_adds"]
    size = study["parameters"][kind]
    accuracy = str(_accuracy(study["whole"][kind]).percent())
    return ["–", thousands(counts[0] if counts else None), "1", thousands(size), accuracy, "–"]


def _smaller(study: Study, kind: str) -> Iterator[list[str]]:
    """What is left of it at every threshold."""
    before = study["whole"][kind]["accuracy"]["value"]
    for point in study["sweep"]:
        found = point[kind]
        bold = "**" * (point["log_alpha"] == study["log_alpha"])
        threshold = f"{bold}{point['log_alpha']:g}{bold}"
        lost = f"{100 * (before - found['accuracy']['value']):.2f}".replace("-", "−")
        counts = found["multiply_adds"]
        sizes = ["kept whole", "1"]
        if counts:
            sizes = [thousands(counts[1]), f"{counts[0] / counts[1]:.2f} ×"]
        size = thousands(found["parameters"])
        yield ["", threshold, *sizes, size, str(_accuracy(found).percent()), lost]


def _accuracy(found: Mapping[str, Any]) -> Cell:
    return Cell(found["accuracy"]["value"], found["accuracy"]["error"])
