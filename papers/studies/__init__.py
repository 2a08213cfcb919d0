"""Studies that are no run of a recipe: each a command, one file of results, and its pictures."""
