"""What honest uncertainty buys and costs: the first screen of the README."""
