"""Model files: tensors as safetensors, specs as JSON, a checksum; nothing is pickled."""

from leanbayes.saving.io import load, load_likelihood, save

__all__ = ["load", "load_likelihood", "save"]
