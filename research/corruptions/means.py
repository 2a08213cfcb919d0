"""Averages over corruptions and severities, as the rank-1 paper prints them."""

from collections.abc import Mapping

from leanbayes.errors import require


def corrupted_means(
    results: Mapping[tuple[str, int], Mapping[str, Mapping[str, float]]],
) -> dict[str, float]:
    """The averages over kinds and severities that the rank-1 paper prints as cNLL, cA and cECE.

    Args:
        results: metrics as ``evaluate`` gives them, by name of the
            corruption and severity; every corruption has the same severities.

    Example:
        >>> corrupted_means({("blur", 1): {"nll": {"value": 1.0}},
        ...                  ("blur", 2): {"nll": {"value": 2.0}}})
        {'nll': 1.5}
    """
    _check_complete(results)
    first, *others = results.values()
    names = [name for name in first if all(name in other for other in others)]
    totals = {name: sum(result[name]["value"] for result in results.values()) for name in names}
    return {name: total / len(results) for name, total in totals.items()}


def mean_corruption_error(
    errors: Mapping[tuple[str, int], float], reference: Mapping[tuple[str, int], float]
) -> float:
    """The mCE: errors of each corruption relative to a reference network's, averaged over kinds.

    Example:
        >>> mean_corruption_error({("blur", 1): 0.2, ("fog", 1): 0.3},
        ...                       {("blur", 1): 0.4, ("fog", 1): 0.3})
        0.75
    """
    _check_complete(errors)
    require(errors.keys() <= reference.keys(), "the reference lacks some of the corruptions")
    kinds = sorted({kind for kind, _ in errors})

    def total(rates: Mapping[tuple[str, int], float], kind: str) -> float:
        return sum(rates[key] for key in errors if key[0] == kind)

    return sum(total(errors, kind) / total(reference, kind) for kind in kinds) / len(kinds)


def _check_complete(results: Mapping[tuple[str, int], object]) -> None:
    require(bool(results), "there are no results to average; evaluate a corruption first")
    kinds, severities = ({key[i] for key in results} for i in range(2))
    absent = [(k, s) for k in kinds for s in severities if (k, s) not in results]
    require(not absent, f"{absent[:1]} has no result; every corruption needs the same severities")
