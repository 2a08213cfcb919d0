"""Goals of costs: where their figures are, and what the table says of them."""

from research.benchmarks.goals import GOALS, WHY, figure_of, section


def cost(median, low=None):
    return {"median": median, "low": low or median}


FOUND = {
    "networks": {
        "branches": {
            "native": {
                "setups": {"resnet": {"k-tied 2": cost(1.03)}, "lstm": {"k-tied 2": cost(1.4)}},
                "predictions": {"resnet": {"k-tied 2": cost(21.004, 20.9)}},
                "large": {"times": {"training step": cost(1.5)}, "memory": {"training step": 1.16}},
            }
        }
    }
}


def test_a_goal_is_reached_at_its_limit_and_not_beyond():
    (_, counted, table, _, reasons) = section(FOUND)
    assert counted.startswith("1 of 5 measured goals are reached, and 1 more within the spread")
    assert "| step, ResNet-20: k-tied 2 | 1.04 | 1.03 | **yes** |" in table
    assert "| step, LSTM: k-tied 2 | 1.15 | 1.40 | no, 21.7% more |" in table
    assert "| 20 samples, ResNet-20: k-tied 2 | 21 | 21.004 | within the spread |" in table
    large = "transformer of 100 million parameters"
    assert f"| memory of a step, {large} | 1.15 | 1.16 | no, 0.9% more |" in table
    assert reasons == f"- step, {large}: {WHY[f'step, {large}']}."


def test_reasons_are_of_goals():
    assert set(WHY) <= {goal.title for goal in GOALS}


def test_what_was_not_measured_has_no_verdict():
    assert all(figure_of({}, goal) is None for goal in GOALS)
    assert "| one pass, CNN: k-tied 2 | 3 | – | not measured |" in section(FOUND)[2]
