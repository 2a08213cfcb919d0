"""A study's file is written part by part, resumed, and refused if it is another study's."""

import json

import pytest

from research.publishing.study_file import StudyFile, read_study


def parts(made, *names):
    def make(name):
        def part():
            made.append(name)
            return {"value": len(name), "curve": [1.0, 2.0]}

        return part

    return {name: make(name) for name in names}


def test_finished_parts_are_not_made_again_and_all_are_told(tmp_path):
    out, made, told = tmp_path / "folder" / "study.json", [], []
    StudyFile(out, "toy", {"size": (1, 2)}).fill(parts(made, "a", "bb"))
    study = StudyFile(out, "toy", {"size": [1, 2]}).fill(
        parts(made, "a", "bb", "ccc"), lambda name, part: told.append((name, part["value"]))
    )
    assert made == ["a", "bb", "ccc"]
    assert told == [("a", 1), ("bb", 2), ("ccc", 3)]
    assert json.loads(out.read_text()) == study == read_study(out, "studies toy")
    assert "[ 1.0, 2.0 ]" in out.read_text()


def test_a_part_that_fails_leaves_the_others_in_the_file(tmp_path):
    out = tmp_path / "study.json"
    with pytest.raises(ZeroDivisionError):
        StudyFile(out, "toy", {}).fill({**parts([], "a"), "b": lambda: 1 / 0})
    assert list(read_study(out, "studies toy")["parts"]) == ["a"]


def test_other_studies_and_settings_are_refused(tmp_path):
    out = tmp_path / "study.json"
    StudyFile(out, "toy", {"size": 1}).fill(parts([], "a"))
    with pytest.raises(ValueError, match="holds a study of toy and not of other"):
        StudyFile(out, "other", {"size": 1})
    with pytest.raises(ValueError, match="another size: it was 1 and is now 2; undo the change"):
        StudyFile(out, "toy", {"size": 2})
    out.write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        StudyFile(out, "toy", {"size": 1})
