"""Goals of costs: where their figures are, and what the table says of them."""

from research.benchmarks.goals import GOALS, measured, section


def cost(median):
    return {"median": median}


FOUND = {
    "networks": {
        "branches": {
            "native": {
                "setups": {"resnet": {"k-tied 2": cost(1.03)}, "lstm": {"k-tied 2": cost(1.4)}},
                "predictions": {"resnet": {"k-tied 2": cost(21.5)}},
                "large": {"times": {"training step": cost(1.2)}, "memory": {"training step": 1.16}},
            }
        }
    }
}


def test_a_goal_is_reached_at_its_limit_and_not_beyond():
    (_, counted, table) = section(FOUND)
    assert counted.startswith("2 of 5 measured goals")
    assert "| step, ResNet-20: k-tied 2 | 1.04 | 1.03 | **yes** |" in table
    assert "| step, LSTM: k-tied 2 | 1.15 | 1.40 | no |" in table
    assert "| 20 samples, ResNet-20: k-tied 2 | 21 | 21.50 | no |" in table
    assert "| memory of a step, transformer of 100 million parameters | 1.15 | 1.16 | no |" in table


def test_what_was_not_measured_has_no_verdict():
    assert all(measured({}, goal) is None for goal in GOALS)
    assert "| one pass, CNN: k-tied 2 | 3 | – | not measured |" in section(FOUND)[-1]
