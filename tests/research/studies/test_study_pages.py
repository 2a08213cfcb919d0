"""Pages of studies show what the files of results hold; run ``make pages`` if this fails."""

import json

import pytest

from leanbayes.lab.files import read_object
from research.benchmarks import page as performance
from research.publishing.pages import refreshed
from research.publishing.paper import DOCS, ROOT
from research.studies.kl_weight import page as kl_weight
from research.studies.lora import page as lora
from research.studies.one_pass import page as one_pass
from research.studies.overview.page import makers, picture
from research.studies.train_well import makers as train_well_makers
from research.studies.uci.tables import makers as uci_makers

pytest.importorskip("matplotlib")
RESULTS = ROOT / "results"


def read(name):
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def kl_weight_text():
    files = [read(path.relative_to(RESULTS)) for path in sorted(RESULTS.glob("kl_weight/*.json"))]
    return kl_weight.text(kl_weight.cells(files), files)


WRITTEN = {
    "kl_weight": kl_weight_text,
    "lora": lambda: lora.page_text(read("lora/minilm.json"), lora.read_trials()),
    "one_pass": lambda: one_pass.text(read("one_pass.json"), _costs()),
    "performance": lambda: performance.text(performance.read(RESULTS / "bench")),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_says_what_its_results_say(name):
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == WRITTEN[name]()


def test_the_tables_of_uci_are_made_from_its_study():
    text = (DOCS / "uci.md").read_text(encoding="utf-8")
    assert "<!-- uci-likelihood: learned -->" in text
    assert refreshed(text, uci_makers(RESULTS / "uci")) == text


def test_the_numbers_of_train_well_are_made_from_studies():
    text = (DOCS / "train_well.md").read_text(encoding="utf-8")
    makers_of_page = train_well_makers(RESULTS)
    assert all(f"<!-- {kind}: " in text for kind in makers_of_page)
    assert refreshed(text, makers_of_page) == text


def _costs():
    name = "bench/one_pass.json"
    return read(name) if (RESULTS / name).exists() else None


def test_the_first_screen_of_the_readme_is_made_from_its_study():
    study = read_object(RESULTS / "overview.json", {"parts"}, "a study", "run it")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "<!-- overview: all -->" in text
    assert refreshed(text, makers(study)) == text
    assert (DOCS / "overview.png").read_bytes().startswith(b"\x89PNG")
    assert picture(study).startswith(b"\x89PNG")
