"""Pages of studies show what the files of results hold; run ``make pages`` if this fails."""

import pytest

from leanbayes.lab.files import read_object
from papers.tools.page import refreshed
from papers.tools.paper import DOCS, ROOT
from studies.overview.page import makers, picture

pytest.importorskip("matplotlib")


def test_the_first_screen_of_the_readme_is_made_from_its_study():
    study = read_object(ROOT / "results" / "overview.json", {"parts"}, "a study", "run it")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "<!-- overview: all -->" in text
    assert refreshed(text, makers(study)) == text
    assert (DOCS / "overview.png").read_bytes().startswith(b"\x89PNG")
    assert picture(study).startswith(b"\x89PNG")
