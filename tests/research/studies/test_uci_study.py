"""The UCI study at small size: resumed, broken files, and tables from what it wrote."""

import json

import numpy as np
import pytest

from leanbayes.sklearn import BayesRegressor
from research.studies.uci import study
from research.studies.uci.published import DROPOUT, LOG_LIKELIHOOD, RMSE, SETS
from research.studies.uci.study import Row, fit_splits, score
from research.studies.uci.tables import Measured, makers, trials_table


@pytest.fixture
def quick(monkeypatch):
    """Fits without data and without time: a split's scores say which split it was."""
    fitted = []

    def fit(row, split):
        fitted.append(split)
        ahead = LOG_LIKELIHOOD[DROPOUT].means[row.data] + (
            0.1 if row.posterior == "k-tied" else -0.1
        )
        noise = 0.01 * split
        return {"seed": split, "log_likelihood": ahead + noise, "rmse": 1.0 + noise,
                "coverage": 0.9, "width": 2.0, "duration": 1.5}  # fmt: skip

    monkeypatch.setattr(study, "_fit", fit)
    return fitted


def test_a_study_goes_on_where_it_was_stopped(quick, tmp_path):
    row = Row("concrete", "k-tied")
    fit_splits(row, tmp_path, range(2))
    told = []
    held = fit_splits(row, tmp_path, range(3), tell=lambda name, _: told.append(name))
    assert quick == [0, 1, 2]
    assert told == ["split 0", "split 1", "split 2"]
    assert held == json.loads((tmp_path / "concrete-k-tied.json").read_text())
    assert {"versions", "threads", "seed"} <= held["parts"]["split 0"].keys()


def test_tables_say_who_is_ahead(quick, tmp_path):
    for posterior in ("k-tied", "mean-field"):
        for data in ("concrete", "energy"):
            fit_splits(Row(data, posterior), tmp_path, range(3))
    made = makers(tmp_path)
    ranks = made["uci-ranks"]("learned")
    assert "| k-tied | 1.00 | 2.00 | concrete, energy |" in ranks
    assert "| mean-field | 2.00 | 1.00 | none |" in ranks
    assert "| learned noise | – | 0.2" in made["uci-differences"]("k-tied − mean-field")
    beside = made["uci-likelihood"]("learned")
    assert "**k-tied**" in beside
    assert "-2.937 ± 0.025" in beside
    assert "90" in made["uci-intervals"]("learned")
    says = made["uci-says"]("learned")
    assert says.startswith(f"- **k-tied** has a better log likelihood than {DROPOUT} on 2 of 2")
    assert "HMC is ahead on 2, by 0.11 to 0.17 nats" in says
    assert "90% intervals hold 90 to 90% of the targets, and a fit takes 2 to 2 seconds" in says
    assert made["uci-says"]("predicted") == "Not measured yet."
    assert made["uci-seconds"]("predicted") == "Not measured yet."
    assert "NGBoost" in made["uci-rmse"]("predicted")


def test_paired_differences_use_common_splits_only():
    a = Measured({0: {"s": 1.0}, 1: {"s": 2.0}, 2: {"s": 9.0}})
    b = Measured({0: {"s": 0.0}, 1: {"s": 0.0}})
    cell = a.minus(b, "s")
    assert (cell.ours, cell.error) == (1.5, pytest.approx(0.5))
    assert a.minus(Measured({7: {"s": 1.0}}), "s").ours is None


def test_trials_are_compared_on_the_splits_that_both_have(tmp_path):
    trials = [
        {"what": what, "data": "concrete", "split": split, "log_likelihood": value}
        for what, values in {"defaults": [1.0, 2.0, 9.0], "wider": [1.5, 2.5]}.items()
        for split, value in enumerate(values)
    ]
    file = tmp_path / "trials.json"
    file.write_text(json.dumps({"against": {"wider": "defaults"}, "trials": trials}))
    assert "| wider | defaults | 0.5 (2) |" in trials_table(file)
    file.write_text(file.read_text()[:50])
    with pytest.raises(ValueError, match="restore the file"):
        trials_table(file)


def test_scores_are_those_of_the_normal_they_come_from():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    y = x @ [1.0, -2.0] + 0.1 * rng.normal(size=80)
    fitted = BayesRegressor(epochs=30, random_state=0).fit(x, y)
    found = score(fitted, x, y)
    mean, std = fitted.predict(x, return_std=True)
    normal = -0.5 * ((y - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    assert found["log_likelihood"] == pytest.approx(normal.mean(), abs=0.05)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((mean - y) ** 2)))
    assert 0 <= found["coverage"] <= 1
    assert found["width"] > 0


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"data": "iris"}, "set 'iris' is unknown"),
        ({"posterior": "k-tide"}, "did you mean 'k-tied'"),
        ({"noise": "none"}, "noise"),
    ],
)
def test_wrong_names_get_a_sentence(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        Row(**{"data": "concrete", "posterior": "k-tied", **wrong})


def test_a_file_of_another_row_is_refused(quick, tmp_path):
    fit_splits(Row("concrete", "k-tied"), tmp_path, [0])
    (tmp_path / "concrete-k-tied.json").rename(tmp_path / "energy-k-tied.json")
    with pytest.raises(ValueError, match="another data: it was 'concrete' and is now 'energy'"):
        fit_splits(Row("energy", "k-tied"), tmp_path, [0])
    with pytest.raises(ValueError, match="no split"):
        fit_splits(Row("wine", "k-tied"), tmp_path, [])


def test_printed_rows_name_known_sets():
    for printed in (LOG_LIKELIHOOD, RMSE):
        for row in printed.values():
            assert row.means.keys() <= SETS.keys()
            assert row.errors is None or row.errors.keys() == row.means.keys()
