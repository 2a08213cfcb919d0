"""Tables of studies in Markdown, with what the paper prints in brackets."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from research.papers.variance.published import TABLE_1, TABLE_2, TABLE_3, printed
from research.publishing.cells import Cell, averaged, count, errors_note, seeds_of
from research.publishing.sorted_slices import CLASSES, classes_seen, slice_note
from research.publishing.tables import markdown_table

Study = Mapping[str, Any]
Studies = Mapping[str, Study | None]
"""By name of the recipe; ``None`` if it was not studied."""

_DIGITS = 6
_ACCURACY = {
    "accuracy.sample": "one sample",
    "accuracy.mean": "means",
    "accuracy.ensemble": "averaged",
}
_KINDS = ("sample", "mean", "ensemble")


def numbers(study: Study) -> dict[str, Cell]:
    """Return every number of a study that a sentence may name, with what is printed.

    Such are ``accuracy.mean``, ``accuracy.sample``, ``accuracy.ensemble``, ``published.mean`` (and
    so on, with normalization in training mode), ``elbo.elbo``, ``elbo.data``, ``elbo.kl``,
    ``histogram.weights`` and ``histogram.images`` (of single draws; also ``.std``, ``.low``,
    ``.high`` and ``.ensemble``), ``pruning.scale.2`` (of 2% that are kept), ``pruning.snr.2``,
    ``pruning.sparse`` (of weights with log α ≤ 3; ``.kept`` is their share),
    ``controls.zero_means``, ``controls.permuted``, ``antithetic.both``, ``densities.contrast``,
    ``densities.explained`` and, by layer, ``alphas.dense1.log_alpha`` (its median), ``.distance``,
    ``.bound``, ``.kl`` and ``.kl_of_log_alpha``. On CIFAR-100 ``classes`` are those of the tested
    images.
    """
    cells = _over_seeds(study)
    for column, value in printed(study["name"]).items():
        cells[column] = replace(cells.get(column, Cell()), published=value)
    return cells


def _over_seeds(study: Study) -> dict[str, Cell]:
    """Return the numbers that all seeds have: means with their errors over seeds."""
    by_seed = [dict(_cells(each)) for each in (study, *study.get("others", ()))]
    return {
        column: averaged([of[column].ours for of in by_seed], [cell.error])
        for column, cell in by_seed[0].items()
        if all(column in of for of in by_seed)
    }


def _cells(study: Study) -> Iterator[tuple[str, Cell]]:
    for part, title in (("accuracy", "accuracy"), ("batch_statistics", "published")):
        for kind, score in (study.get(part) or {}).items():
            if kind != "batch_size":
                yield f"{title}.{kind}", _cell(score)
    for kind, value in study["elbo"].items():
        yield f"elbo.{kind}", Cell(value, study["elbo"]["error"] if kind != "kl" else None)
    for kind, drawn in study["histogram"].items():
        yield f"histogram.{kind}", Cell(drawn["mean"])
        yield f"histogram.{kind}.ensemble", _cell(drawn["ensemble"])
        yield from ((f"histogram.{kind}.{n}", Cell(drawn[n])) for n in ("std", "low", "high"))
    if (classes := _classes_seen(study)) is not None:
        yield "classes", Cell(classes)
    yield from _of_scales(study)


def _of_scales(study: Study) -> Iterator[tuple[str, Cell]]:
    for by in ("scale", "snr"):
        for point in (study.get("pruning") or {}).get(by, ()):
            yield f"pruning.{by}.{_share(point['kept'])}", _cell(point)
    if study.get("pruning"):
        yield "pruning.sparse", _cell(study["pruning"]["sparse"])
        yield "pruning.sparse.kept", Cell(study["pruning"]["sparse"]["kept"])
    for kind, score in (study.get("controls") or {}).items():
        yield f"controls.{kind}", _cell(score)
    for kind, share in (study.get("antithetic") or {}).items():
        yield f"antithetic.{kind}", Cell(share["both"] if kind == "centered" else share)
    for kind in ("contrast", "explained"):
        if (study.get("densities") or {}).get(kind):
            yield f"densities.{kind}", Cell(study["densities"][kind][1])
    for layer, row in (study.get("alphas") or {}).items():
        yield f"alphas.{layer}.log_alpha", Cell(row["log_alpha"][1])
        for kind in ("distance", "bound", "kl", "kl_of_log_alpha"):
            yield f"alphas.{layer}.{kind}", Cell(row[kind])


def _cell(score: Mapping[str, float]) -> Cell:
    return Cell(score["value"], score["error"])


def _share(kept: float) -> str:
    """Return a share in per cent.

    Example:
        >>> _share(0.0200195), _share(1.0)
        ('2', '100')
    """
    return f"{float(f'{100 * kept:.2g}'):g}"


def _table(
    columns: Mapping[str, str], printed: Mapping[str, Mapping[str, float]]
) -> Callable[[Studies], str]:
    """Return what makes a table of some numbers: accuracies in per cent, ELBOs in nats."""
    header = ["network", "run", *columns.values()]

    def table(studies: Studies) -> str:
        lines = (
            [*_begin(name, study), *(_shown(c, cells.get(c, Cell())) for c in columns)]
            for name, study, cells in _rows(studies, printed)
        )
        return markdown_table(header, lines)

    return table


def _shown(column: str, cell: Cell) -> str:
    """A tenth of a nat is enough of an ELBO, and nothing is left of rounding errors."""
    if not column.startswith("elbo."):
        return str(cell.percent(_DIGITS))
    value = None if cell.ours is None else round(cell.ours, 1) + 0.0
    return _signed(str(Cell(value, None, cell.published)))


table_1 = _table(
    {
        "elbo.elbo": "ELBO",
        "elbo.data": "data term",
        "elbo.kl": "KL",
        "accuracy.mean": "means",
        "accuracy.ensemble": "averaged",
    },
    TABLE_1,
)
"""ELBO of the training set, its parts, and accuracies in per cent [variance, Table 1]."""

_accuracies = _table({kind: f"{title}, %" for kind, title in _ACCURACY.items()}, TABLE_2)

table_3 = _table(
    {kind: f"{_ACCURACY[kind]}, %" for kind in ("accuracy.sample", "accuracy.ensemble")}, TABLE_3
)
"""Accuracies of tanh networks [variance, Table 3]."""

controls = _table(
    {
        "accuracy.ensemble": "as trained, %",
        "controls.zero_means": "means zero, %",
        "controls.permuted": "σ permuted, %",
    },
    {},
)
"""Averaged samples as trained, without means, and with σ that changed places."""


def table_2(studies: Studies) -> str:
    """Return accuracies of one sample, of means and of averaged samples [variance, Table 2]."""
    return "\n\n".join(filter(None, (_accuracies(studies), _of_few_classes(studies))))


def _of_few_classes(studies: Studies) -> str:
    """A sentence about the rows whose test images were a slice of sorted files; often empty."""
    few = [
        (_begin(name, study)[0], study["images"], seen)
        for name, study in studies.items()
        if study and (seen := _classes_seen(study)) not in (None, CLASSES)
    ]
    if not few:
        return ""
    (_, images, classes), names = few[0], "; ".join(title for title, _, _ in few)
    return slice_note(f"The rows *{names}* are", images, classes or 0)


def _classes_seen(study: Study) -> int | None:
    """Return how many classes the test images have; ``None`` if they are not of CIFAR-100."""
    if study.get("recipe", {}).get("data", {}).get("name") != "cifar100":
        return None
    return classes_seen(study["images"], study.get("data"))


def errors_of(studies: Studies) -> str:
    """Return what the standard errors of a table of these studies are over."""
    return errors_note(1 + len(study.get("others", ())) for study in studies.values() if study)


def _rows(
    studies: Studies, table: Mapping[str, Mapping[str, float]]
) -> Iterator[tuple[str, Study | None, dict[str, Cell]]]:
    """Studies with their numbers, next to what this table prints of them."""
    for name, study in studies.items():
        cells = _over_seeds(study) if study else {}
        row = table.get(name, {})
        known = {column: cells.get(column, Cell()) for column in {*cells, *row}}
        yield (
            name,
            study,
            {c: Cell(cell.ours, cell.error, row.get(c)) for c, cell in known.items()},
        )


def _begin(name: str, study: Study | None) -> list[str]:
    if study is None:
        return [name, "not run"]
    published = study.get("recipe", {}).get("published") or {}
    seeds = [each["seed"] for each in (study, *study.get("others", ()))]
    return [published.get("row", name), f"{study.get('epochs')} epochs, {seeds_of(seeds)}"]


def _signed(text: str) -> str:
    return text.replace("-", "−")


def _known(studies: Studies, part: str, what: str) -> Iterator[tuple[str, Study]]:
    """The studies that were made; all must have a part."""
    for name, study in studies.items():
        if study is None:
            command = "python -m research papers variance RUN"
            raise FileNotFoundError(f"{name} was not studied; run {command}")
        if not study.get(part):
            raise ValueError(f"{name} has no {what}: it has no such random layer; leave it out")
        yield name, study


def batch_statistics(studies: Studies) -> str:
    """Accuracies in eval mode and with normalization in training mode, as the code has it."""
    modes = {"accuracy": "running averages", "published": "statistics of the batch"}
    lines = (
        [*_begin(name, study), mode, *_bare(study, *(f"{part}.{kind}" for kind in _KINDS))]
        for name, study in _known(studies, "batch_statistics", "batch normalization")
        for part, mode in modes.items()
    )
    head = ["network", "run", "normalized by", *(f"{title}, %" for title in _ACCURACY.values())]
    return markdown_table(head, lines)


def alphas(studies: Studies) -> str:
    """Return log α and what follows from it, layer by layer."""
    header = [
        *("network", "layer", "weights", "log α: quartiles", "variance layer"),
        *("distance to zero mean", "bound of the paper", "KL", "KL by log α"),
    ]
    lines = (
        [
            _begin(name, study)[0],
            layer,
            count(row["weights"]),
            " / ".join("∞" if v is None else f"{v:.2f}" for v in row["log_alpha"]),
            "yes" if row["variance_layer"] else "no",
            _number(row["distance"]),
            _number(row["bound"]) + (", above 1" if row["bound_says_nothing"] else ""),
            *(_number(row[kind], ".1f") for kind in ("kl", "kl_of_log_alpha")),
        ]
        for name, study in _known(studies, "alphas", "log α")
        for layer, row in study["alphas"].items()
    )
    return markdown_table(header, ([*line[:3], *map(_signed, line[3:])] for line in lines))


def _number(value: float | None, form: str = ".3g") -> str:
    return "–" if value is None else format(value, form)


def _bare(study: Study, *columns: str) -> list[str]:
    """Return numbers of ours alone, in per cent."""
    cells = _over_seeds(study)
    return [str(cells[column].percent(_DIGITS)) for column in columns]


def pruned(studies: Studies) -> str:
    """Return accuracies in per cent at every share of weights that is kept."""
    known = dict(_known(studies, "pruning", "standard deviations"))
    shares = [point["kept"] for point in next(iter(known.values()))["pruning"]["scale"]]
    header = ["network", "pruned by", *(f"{_share(share)}% kept" for share in shares), "log α ≤ 3"]
    lines = []
    for name, study in known.items():
        for by, title in (("scale", "σ"), ("snr", "\\|μ\\| / σ")):
            at_random = by == "snr" and study["pruning"]["snr_at_random"]
            points = (str(_cell(point).percent(_DIGITS)) for point in study["pruning"][by])
            title += ", all alike, so at random" * at_random
            sparse = study["pruning"]["sparse"]
            left = f"{_share(sparse['kept'])}% kept: {_cell(sparse).percent(_DIGITS)}"
            lines.append([_begin(name, study)[0], title, *points, left if by == "snr" else ""])
    return markdown_table(header, lines)


def antithetic(studies: Studies) -> str:
    """Return how often a draw and its mirror image are right, in per cent."""
    header = ["network", "run", "one sample, %", "both ε and −ε", "one of them", "none"]
    lines = []
    for name, study in studies.items():
        begin, shares = _begin(name, study), study and study.get("antithetic")
        if not study or not shares:
            lines.append([*begin, *["–"] * 4])
            continue
        centered = shares["centered"]
        sample = 100 * (centered["both"] + 0.5 * centered["one"])
        title = f"{begin[0]}, running means set to zero"
        lines += [
            [*begin, *_bare(study, "accuracy.sample"), *_pairs(shares)],
            [title, "the same", f"{sample:.4g}", *_pairs(centered)],
        ]
    return markdown_table(header, lines)


def _pairs(shares: Mapping[str, float]) -> list[str]:
    return [f"{100 * shares[kind]:.3g}" for kind in ("both", "one", "none")]
