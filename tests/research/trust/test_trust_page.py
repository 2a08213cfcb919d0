"""Blocks of docs/trust.md: computed from results, and honest where there are none."""

from research.trust.page import (
    calibration_table,
    faults_table,
    fuzz_table,
    gold_tables,
    hmc_table,
    mutants_table,
    properties_table,
    survivors_table,
    trust_makers,
)


def test_shares_of_noticed_errors_leave_out_invalid_and_equivalent_ones():
    verdicts = ["killed", "killed", "survived", "uncovered", "invalid", "survived", "survived"]
    place = {"file": "metrics/a.py", "at": 3, "before": "a | b", "after": "a & b"}
    parts = {str(i): {**place, "verdict": v} for i, v in enumerate(verdicts)}
    parts["5"]["reason"] = "equivalent: one way or the other"
    parts["6"]["reason"] = "no test of this"
    lines = mutants_table({"parts": parts}).splitlines()
    assert lines[-1] == "| all | 6 | 2 | 33.3 | 1 | 40.0 | 1 |"
    native = {"file": "kernels/kernels.cpp", "verdict": "killed"}
    assert "| kernels (C++) | 1 | 1 | 100.0 | 0 | 100.0 | 0 |" in mutants_table(
        {"parts": {"0": native}}
    )
    assert survivors_table({"parts": parts}).count("metrics/a.py:3") == 4


def test_the_nearest_method_is_computed():
    def part(distance):
        return {"total_variation": distance, "mean_distance": 0, "std_ratio": 1, "nll": 0,
                "gold_nll": 0.5}  # fmt: skip

    parts = {"p | far | seed 0": part(0.4), "p | near | seed 0": part(0.1)}
    text = gold_tables({"parts": {**parts, "p | near | seed 1": part(0.3)}})
    assert "Nearest by total variation: near, far." in text
    assert "| near | 0.200 |" in text
    assert "Seeds per method: 1 to 2." in text


def test_families_that_are_not_uniform_are_marked():
    settings = {"simulations": 5, "examples": 20, "draws": 9, "seed": 0}
    parts = {"m | a": {"spread": 1.0, "uniform": True}, "m | b": {"spread": 1.5, "uniform": False}}
    text = calibration_table({"settings": settings, "parts": parts})
    assert "| a | 1.00 |" in text
    assert "| b | 1.50 (not uniform) |" in text


def test_cases_that_ended_otherwise_are_listed():
    parts = {
        "0": {"command": "train", "fault": "SIGKILL", "problem": ""},
        "1": {"command": "fit", "fault": "full disk", "problem": "another result"},
    }
    text = faults_table({"parts": parts})
    assert "Seed 0, 0 minutes." in text
    assert "2 cases, 1 of which ended otherwise" in text
    assert "- fit, full disk: another result" in text


def test_parts_of_the_fuzz_are_added_up():
    def part(findings):
        facts = {"duration": 90.0, "revision": "0123456789"}
        return {"mutations": 5000, "accepted": 2, "findings": findings, "slowest": 0.31, **facts}

    text = fuzz_table({"parts": {"CSV | 0": part([]), "CSV | 1": part(["7: KeyError"])}})
    assert text.startswith("Seed 0, 3 minutes, revision `0123456`.\n")
    assert "| CSV | 10,000 | 4 | 1 | 310 |" in text
    assert "| all | 10,000 | 4 | 1 | 310 |" in text


def test_properties_that_failed_are_named():
    parts = {
        "test_a_kl_is_finite": {"examples": 1250, "passed": True, "problem": "", "duration": 90.0},
        "test_laws": {"examples": 3, "passed": False, "problem": "E  assert 1", "duration": 30.0},
    }
    text = properties_table({"settings": {"seed": 1}, "parts": parts})
    assert "1,253 examples of 2 properties with seed 1, in 2 minutes; 1 of the properties" in text
    assert "- laws: E assert 1" in text
    assert "| a kl is finite | 1,250 |" in text


def test_what_was_not_recorded_is_said():
    assert properties_table({}) == "The long run was not recorded."
    for kind, make in trust_makers().items():
        if kind not in {"calibration", "gold-chains"}:
            assert isinstance(make("results/trust/no-such-file.json"), str)


def test_published_agreement_with_hmc_is_beside_that_of_runs():
    numbers = {"agreement": 0.9, "total_variation": 0.2, "accuracy": 0.85}
    published = "| deep ensemble (Izmailov et al., 2021) | 0.917 | 0.104 | – |"
    assert published in hmc_table({})
    assert hmc_table({}).startswith("No run of leanbayes was compared yet")
    text = hmc_table({"parts": {"k-tied": numbers}})
    assert text.startswith("| run |")
    assert "| k-tied | 0.900 | 0.200 | 0.850 |" in text
    assert published in text
