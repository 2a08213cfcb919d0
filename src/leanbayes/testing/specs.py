"""What every spec keeps: equality, hashing, and JSON there and back."""

from __future__ import annotations

from leanbayes.posteriors import POSTERIORS
from leanbayes.priors import PRIORS
from leanbayes.spec import Spec

__all__ = ["check_spec"]


def check_spec(spec: Spec) -> None:
    """Check that a spec survives JSON and can be compared."""
    kinds = {**POSTERIORS, **PRIORS}
    again = Spec.from_dict(spec.to_dict(), kinds)
    assert again == spec, f"{spec} does not survive to_dict and from_dict"
    assert hash(again) == hash(spec), f"{spec} is not hashable; make it a frozen dataclass"
