"""Predict a number from a table, with intervals in the units of the table.

The table is scikit-learn's diabetes data: ten columns, and the progression of the disease after a
year. Intervals of a Bayesian network should contain the stated share of new patients. The baseline
is scikit-learn's Bayesian linear regression, which is hard to beat on 442 rows. Needs
``pip install -c constraints.txt -e '.[lab,sklearn]'``.
"""

import argparse

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import norm
from sklearn.datasets import load_diabetes
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import leanbayes as lb
from leanbayes.sklearn import BayesRegressor

COVERAGES = np.array([0.5, 0.6, 0.7, 0.8, 0.9, 0.95])


def intervals_of_network(model, x):
    """Return ends ``[2, coverages, rows]`` of central intervals."""
    inside = model[:-1].transform(x)
    return model[-1].predict_interval(inside, coverage=list(COVERAGES)).transpose(1, 2, 0)


def intervals_of_ridge(model, x):
    mean, std = model.predict(x, return_std=True)
    width = norm.ppf(0.5 + COVERAGES / 2)[:, None] * std
    return np.stack([mean - width, mean + width])


def scores(name, mean, ends, y):
    low, high = ends
    held = ((low <= y) & (y <= high)).mean(1)
    at_90 = list(COVERAGES).index(0.9)
    row = {
        "rmse": float(np.sqrt(np.mean((mean - y) ** 2))),
        "coverage": float(held[at_90]),
        "width": float((high - low)[at_90].mean()),
    }
    print(f"{name:18}{row['rmse']:8.1f}{100 * row['coverage']:16.0f}%{row['width']:10.0f}")
    return row, held


def draw(path, y, mean, ends, held):
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    lb.plots.style(left, "new patients, sorted by prediction", "progression after a year")
    lb.plots.style(right, "stated coverage", "observed coverage")
    low, high = ends[:, list(COVERAGES).index(0.9)]
    order, rank = np.argsort(mean), np.arange(len(mean))
    (line,) = left.plot(rank, mean[order], ".", ms=4, label="mean")
    bars = {"color": line.get_color(), "alpha": 0.25, "lw": 2}
    left.vlines(rank, low[order], high[order], **bars, label="90% interval")
    left.plot(rank, y[order], "x", ms=4, label="measured")
    left.legend(fontsize=8, edgecolor="none")
    right.plot([0.45, 1], [0.45, 1], "--", color="gray")
    for name, shares in held.items():
        right.plot(COVERAGES, shares, "o-", ms=4, label=name)
    right.legend(fontsize=8, edgecolor="none")
    figure.savefig(path, dpi=120)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few epochs only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="tabular_intervals.png")
    options = parser.parse_args(arguments)

    x, y = load_diabetes(return_X_y=True, scaled=False)
    parts = train_test_split(x, y, test_size=110, random_state=options.seed)
    x_train, x_test, y_train, y_test = parts
    epochs = 50 if options.quick else None
    network = make_pipeline(
        StandardScaler(), BayesRegressor(epochs=epochs, random_state=options.seed)
    ).fit(x_train, y_train)
    ridge = make_pipeline(StandardScaler(), BayesianRidge()).fit(x_train, y_train)

    print(f"{'':18}{'RMSE':>8}{'coverage of 90%':>17}{'width':>10}")
    mean, ends = network.predict(x_test), intervals_of_network(network, x_test)
    ours, held = scores("Bayesian network", mean, ends, y_test)
    linear, linearly_held = scores(
        "Bayesian ridge", ridge.predict(x_test), intervals_of_ridge(ridge, x_test), y_test
    )
    curves = {"Bayesian network": held, "Bayesian ridge": linearly_held}
    draw(options.picture, y_test, mean, ends, curves)
    print(f"{len(y_test)} new patients; see {options.picture}")
    return {"network": ours, "ridge": linear, "spread": float(y_test.std())}


if __name__ == "__main__":
    main()
