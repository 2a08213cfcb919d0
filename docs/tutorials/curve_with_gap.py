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
# # A curve with a gap
#
# A Bayesian regression separates two kinds of uncertainty. *Aleatoric* uncertainty is the noise of
# the data. *Epistemic* uncertainty is what the model has not seen. This tutorial fits a curve with
# growing noise and a gap in the data, and plots both.
#
# ## Data
#
# There is no data between −0.3 and 0.5, and the noise grows with x.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import leanbayes as lb

torch.manual_seed(0)
torch.set_num_threads(1)


def observe(x):
    return torch.sin(4 * x) + (0.05 + 0.1 * (x + 1)) * torch.randn_like(x)


left, right = torch.rand(500, 1) * 0.7 - 1.0, torch.rand(500, 1) * 0.5 + 0.5
x = torch.cat([left, right])
y = observe(x)

# %% [markdown]
# ## Model
#
# The network has two outputs: a mean and a raw noise scale. `lb.likelihoods.Gaussian` with
# `noise="predicted"` gives them this meaning.

# %%
net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
model = lb.convert(net, lb.MeanField(), lb.priors.Normal(1.0))
likelihood = lb.likelihoods.Gaussian(0.2, noise="predicted")

# %% [markdown]
# ## Training
#
# `lb.fit` trains in place. A KL weight of 1 makes the loss a bound on the evidence, which suits a
# small network with 1,000 examples.

# %%
history = lb.fit(
    model,
    (x, y),
    likelihood=likelihood,
    epochs=1000,
    batch_size=len(x),
    lr=1e-2,
    kl_weight=1.0,
    kl_warmup=0.5,
    seed=0,
    progress=False,
)

# %% [markdown]
# ## Prediction
#
# A prediction has a mean, quantiles, and the variance in two parts.

# %%
grid = torch.linspace(-1.2, 1.2, 121)[:, None]
p = lb.predict(model, grid, samples=200, seed=1, likelihood=likelihood)
low, high = p.quantiles([0.05, 0.95])
for at in (-0.7, 0.1, 0.8):
    i = int((grid[:, 0] - at).abs().argmin())
    noise, model_std = p.aleatoric[i].sqrt().item(), p.epistemic[i].sqrt().item()
    print(f"x = {at:4.1f}: noise {noise:.2f}, model uncertainty {model_std:.2f}")

# %% [markdown]
# ## Figure
#
# The interval widens to the right because the noise grows. The model uncertainty rises in the gap
# and outside the data.

# %%
figure, (upper, lower) = plt.subplots(2, 1, figsize=(6, 5), sharex=True, layout="constrained")
lb.plots.style(upper, "", "y")
lb.plots.style(lower, "x (gray: no data)", "standard deviation")
upper.plot(x, y, ".", color="0.6", markersize=2)
upper.plot(grid, p.mean)
upper.fill_between(grid[:, 0], low[:, 0], high[:, 0], alpha=0.25)
upper.set_title("mean and 90% interval")
for variance, name in ((p.aleatoric, "noise (aleatoric)"), (p.epistemic, "model (epistemic)")):
    (line,) = lower.plot(grid, variance.sqrt())
    lower.annotate(name, (1.22, float(variance[-1].sqrt())), color=line.get_color(), va="center")
lower.axvspan(-0.3, 0.5, color="0.92", zorder=0)
lower.set_xlim(-1.25, 2.0)
plt.show()
