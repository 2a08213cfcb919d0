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
# # A trained CNN made Bayesian
#
# You have a trained network and no time to train it again. `lb.laplace` gives it a posterior from
# one pass over its training data. `lb.convert` uses its weights as means and trains on.
#
# ## A trained network
#
# A small CNN for the digits of scikit-learn, trained as usual.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import leanbayes as lb

torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
y = torch.tensor(labels)
train, test = torch.randperm(len(x)).split([800, len(x) - 800])
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(128, 10),
)
recipe = {"batch_size": 100, "seed": 0, "progress": False}
lb.fit(net, (x[train], y[train]), epochs=15, lr=3e-3, **recipe)

# %% [markdown]
# ## Two ways to a posterior
#
# Conversion keeps the trained weights as means. A few more epochs then learn the noise.

# %%
converted = lb.convert(net)
lb.fit(converted, (x[train], y[train]), epochs=15, lr=1e-3, **recipe)
curved = lb.laplace(net, (x[train], y[train]), "kfac")

# %% [markdown]
# ## Scores
#
# The test images are rotated by 0 to 90 degrees. Rotation shifts the distribution, and a
# calibrated network becomes less certain.

# %%
angles = range(0, 91, 15)


def rotated(batch, degrees):
    turn = torch.tensor(degrees * torch.pi / 180)
    matrix = torch.tensor([[turn.cos(), -turn.sin(), 0.0], [turn.sin(), turn.cos(), 0.0]])
    grid = nn.functional.affine_grid(
        matrix.expand(len(batch), 2, 3), batch.shape, align_corners=False
    )
    return nn.functional.grid_sample(batch, grid, align_corners=False)


models = {
    "plain": (net, {}),
    "converted": (converted, {}),
    "Laplace": (curved, {"linearized": True}),
}
curves = {}
for name, (model, options) in models.items():
    scores = [
        lb.predict(model, rotated(x[test], angle), samples=20, seed=1, **options).metrics(y[test])
        for angle in angles
    ]
    curves[name] = [score["nll"].value for score in scores]
    print(f"{name:10} accuracy {scores[0]['accuracy']}, NLL {scores[0]['nll']}")

# %% [markdown]
# ## Figure
#
# The NLL over the angle, for all three. Lower is better.

# %%
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
lb.plots.style(axes, "rotation (degrees)", "NLL (nats per image)")
for name, curve in curves.items():
    (line,) = axes.plot(angles, curve)
    axes.annotate(name, (92, curve[-1]), color=line.get_color(), va="center")
axes.set_xlim(0, 112)
plt.show()
