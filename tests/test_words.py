"""Words that people read: module docstrings name the thing, and names that texts use exist."""

import ast
import pkgutil
import re
from pathlib import Path

import pytest

import leanbayes as lb

PACKAGE = Path(lb.__file__).parent
SOURCES = {
    path.relative_to(PACKAGE.parent).as_posix(): path
    for folder in (PACKAGE, PACKAGE.parent / "leanbayes_cli")
    for path in sorted(folder.rglob("*.py"))
}
QUESTION = re.compile(r"(What|Where|How|Which|Whether|Who|When|Why)\b")
TO_DO = {
    "leanbayes/analysis/ablation.py",
    "leanbayes/analysis/scaled_layers.py",
    "leanbayes/analysis/sparsity.py",
    "leanbayes/compression/compaction/report.py",
    "leanbayes/compression/pruning_curve.py",
    "leanbayes/conversion/plan_report.py",
    "leanbayes/kernels/fused.py",
    "leanbayes/lab/architectures/base.py",
    "leanbayes/lab/callbacks.py",
    "leanbayes/lab/console.py",
    "leanbayes/lab/data/search.py",
    "leanbayes/lab/demo/conclusions.py",
    "leanbayes/lab/from_recipe.py",
    "leanbayes/lab/incidents.py",
    "leanbayes/lab/launch.py",
    "leanbayes/lab/preflight.py",
    "leanbayes/lab/provenance.py",
    "leanbayes/lab/recipe_files.py",
    "leanbayes/lab/report/study.py",
    "leanbayes/lab/report/summary.py",
    "leanbayes/lab/robustness.py",
    "leanbayes/lab/weights.py",
    "leanbayes/likelihoods/mixtures.py",
    "leanbayes/metrics/calibration.py",
    "leanbayes/metrics/diversity.py",
    "leanbayes/metrics/intervals.py",
    "leanbayes/metrics/ranking.py",
    "leanbayes/metrics/rejection.py",
    "leanbayes/posteriors/base.py",
    "leanbayes/prediction/inputs.py",
    "leanbayes/sklearn/base.py",
    "leanbayes/testing/__init__.py",
    "leanbayes/testing/assertions.py",
    "leanbayes/training/diagnose.py",
    "leanbayes/training/parameter_groups.py",
    "leanbayes_cli/evaluate.py",
}
"""Modules whose docstrings still begin with a question; take one out when it names the thing."""


@pytest.mark.parametrize("name", SOURCES)
def test_a_module_docstring_names_the_thing(name):
    docstring = ast.get_docstring(ast.parse(SOURCES[name].read_text(encoding="utf-8")))
    assert docstring
    asks = bool(QUESTION.match(docstring))
    assert asks <= (name in TO_DO), f"{name} begins with {docstring.split()[0]!r}; name the thing"


ROOT = Path(__file__).parents[1]
TEXTS = {
    path.relative_to(ROOT).as_posix(): path
    for path in (*PACKAGE.rglob("*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md")
}
REFERENCE = re.compile(r":\w+:`~?(leanbayes[\w.]+)`|`(leanbayes(?:\.\w+)+)[`(]")


@pytest.mark.parametrize("name", TEXTS)
def test_names_that_a_text_refers_to_exist(name):
    for groups in REFERENCE.findall(TEXTS[name].read_text(encoding="utf-8")):
        pkgutil.resolve_name("".join(groups))
