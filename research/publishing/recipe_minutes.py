"""Minutes that recipes take with the budget of two cores, from the archived results."""

import json
from pathlib import Path

from leanbayes.lab.files import write_json
from leanbayes.lab.recipe_files import read_recipe
from leanbayes.lab.recipe_names import recipe_names
from research.publishing.paper import RECIPES, RESULTS

FILE = RECIPES / "minutes.json"


def recipe_minutes(results: Path = RESULTS) -> dict[str, int]:
    """Mean duration of the archived runs that trained as the budget asks, at least 1 minute."""
    minutes = {}
    for name in recipe_names():
        training = read_recipe(name, budget="cpu").training
        asked = (training.epochs, training.batch_size)
        seconds = [
            archived["seconds"]
            for path in sorted(results.glob(f"{name}-*seed*.json"))
            for archived in [json.loads(path.read_text(encoding="utf-8"))]
            if archived.get("name") == Path(name).name and _trained(archived) == asked
        ]
        if seconds:
            minutes[name] = max(1, round(sum(seconds) / len(seconds) / 60))
    return minutes


def _trained(archived: dict[str, dict[str, dict[str, int]]]) -> tuple[int | None, int | None]:
    training = archived.get("recipe", {}).get("training", {})
    return training.get("epochs"), training.get("batch_size")


if __name__ == "__main__":
    write_json(FILE, recipe_minutes())
