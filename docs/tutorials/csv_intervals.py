# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     name: python3
#     display_name: Python 3
# ---

# %% [markdown]
# # Your CSV with intervals
#
# For tabular data, use the scikit-learn estimators. This tutorial reads a CSV file, fits a
# `BayesRegressor` and checks its 90% intervals on test rows.
#
# ## Data
#
# The file is scikit-learn's diabetes table, written to disk first. Put your own file in its place.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

import leanbayes as lb
from leanbayes.sklearn import BayesRegressor

torch.set_num_threads(1)
table = load_diabetes(scaled=False)
file = Path(tempfile.mkdtemp()) / "diabetes.csv"
names = [*table.feature_names, "progression"]
rows = np.column_stack([table.data, table.target])
np.savetxt(file, rows, delimiter=",", header=",".join(names), comments="", fmt="%g")
print(file.read_text().splitlines()[0])

# %% [markdown]
# ## Read and split

# %%
read = np.genfromtxt(file, delimiter=",", names=True)
inputs = np.column_stack([read[name] for name in read.dtype.names[:-1]])
target = read["progression"]
X_train, X_test, y_train, y_test = train_test_split(inputs, target, test_size=0.3, random_state=0)

# %% [markdown]
# ## Fit
#
# The estimator scales inputs and targets, learns the noise and sets the KL weight.

# %%
model = BayesRegressor(random_state=0).fit(X_train, y_train)
mean, std = model.predict(X_test, return_std=True)
low, high = model.predict_interval(X_test, 0.9).T
inside = (low <= y_test) & (y_test <= high)
print(f"RMSE {np.sqrt(np.mean((mean - y_test) ** 2)):.1f}, target std {y_test.std():.1f}")
print(f"90% intervals contain {100 * inside.mean():.0f}% of {len(y_test)} test rows")

# %% [markdown]
# ## Figure
#
# Test rows in the order of their predicted means. The bars are 90% intervals.

# %%
order = np.argsort(mean)
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
lb.plots.style(axes, "test row (orange: outside its interval)", "disease progression")
axes.plot(mean[order])
for within, mark in ((False, "X"), (True, ".")):
    at = np.flatnonzero(inside[order] == within)
    axes.plot(at, y_test[order][at], mark, markersize=4)
axes.vlines(np.arange(len(order)), low[order], high[order], color="0.8", zorder=0)
plt.show()
