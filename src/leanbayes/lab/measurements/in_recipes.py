"""Measurements as recipes list them: ``{kind: probe, steps: [100], layer: dense1}``."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, ValidationError

from leanbayes.lab.measurements.base import MEASUREMENTS, Measurement, MissingMeasurement
from leanbayes.lab.validation import sentence

_FORMER_KEYS = ("probe", "phases", "sparse_curves")


def with_listed_measurements(values: Mapping[str, Any]) -> dict[str, Any]:
    """Translate recipes of the first runs, which have a key for every measurement."""
    others = {key: value for key, value in values.items() if key not in _FORMER_KEYS}
    former = [
        {"kind": key, **values[key]} if isinstance(values[key], Mapping) else values[key]
        for key in _FORMER_KEYS
        if values.get(key) is not None
    ]
    if former:
        others["measurements"] = [*former, *others.get("measurements", ())]
    return others


def kind_of(measurement: Measurement) -> str:
    """Return the name of a measurement."""
    if isinstance(measurement, MissingMeasurement):
        return measurement.kind
    return MEASUREMENTS.name_of(measurement)


def _read(value: Any) -> Any:
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, Mapping):
        return value
    options = dict(value)
    name = str(options.pop("kind", ""))
    if MEASUREMENTS.is_missing(name):
        return MissingMeasurement.model_validate(value)
    kind = MEASUREMENTS[name]
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        raise ValueError(sentence(error, kind)) from error


def _write(value: Measurement) -> dict[str, Any]:
    return {"kind": kind_of(value), **value.model_dump(mode="json")}


MeasurementField = Annotated[Measurement, BeforeValidator(_read), PlainSerializer(_write)]
