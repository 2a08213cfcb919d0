"""Policies as the page of their paper shows them."""

import pytest

from leanbayes.lab.files import write_json
from research.papers.variance.policies import (
    curves_of_policies,
    keep_policy,
    read_policy,
    table_of_policies,
)


def explored(policy="variance", finished=True, episodes=200):
    runs = [
        {
            "seed": seed,
            "finished": finished,
            "last_100": {"value": 100.0 + seed, "error": 1.0},
            "returns": [float(i % 7 + seed) for i in range(episodes)],
        }
        for seed in range(3)
    ]
    return {
        "environment": "CartPole-v0",
        "settings": {"policy": policy, "episodes": episodes},
        "last_100": {"value": 101.0, "error": 0.58},
        "runs": runs,
    }


@pytest.mark.checklist("VN20")
def test_a_kept_study_has_averages_over_blocks_and_the_whole_settings(tmp_path):
    write_json(tmp_path / "raw.json", explored())
    kept = read_policy(keep_policy(tmp_path / "raw.json", tmp_path / "kept"))
    assert (tmp_path / "kept" / "CartPole-v0-variance.json").is_file()
    assert kept["runs"][0]["returns"][:2] == [1.5, 3.75]  # 0 1 2 3, then 4 5 6 0
    assert len(kept["runs"][2]["returns"]) == 50
    assert kept["settings"] == {"policy": "variance", "episodes": 200}


@pytest.mark.checklist("VN20")
def test_the_table_has_mean_error_and_range_over_seeds():
    table = table_of_policies([explored(), explored("deterministic")])
    assert "| CartPole-v0 | variance | 101.0 ± 0.6 | 100.0 | 102.0 | 3 |" in table
    assert table.count("\n") == 3


def test_curves_are_a_picture():
    assert curves_of_policies([explored(), explored("noise")]).startswith(b"\x89PNG")


def test_curves_of_other_lengths_are_refused():
    with pytest.raises(ValueError, match="other numbers of episodes"):
        curves_of_policies([explored(), explored("noise", episodes=400)])


def test_an_unfinished_seed_is_not_kept(tmp_path):
    write_json(tmp_path / "raw.json", explored(finished=False))
    with pytest.raises(ValueError, match=r"seed 0 of .* is not finished; run the command again"):
        keep_policy(tmp_path / "raw.json", tmp_path)
