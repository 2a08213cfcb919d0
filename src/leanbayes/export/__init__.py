"""Networks for other programs: ONNX files that answer with uncertainty."""

from leanbayes.export.onnx import export_onnx

__all__ = ["export_onnx"]
