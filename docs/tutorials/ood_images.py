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
# # Images of another kind
#
# A classifier meets images that belong to none of its classes. A plain network is often confident
# about them. This tutorial trains a plain and a Bayesian network on some digits, and shows both
# the digits that they have never seen.
#
# ## Data
#
# The digits of scikit-learn come with the package. The classes 0 to 5 are in distribution. The
# digits 6 to 9 are out of distribution (OOD).

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import leanbayes as lb

torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
known = y < 6
ood = x[~known]
x, y = x[known], y[known]
order = torch.randperm(len(x))
train, test = order[:700], order[700:]

# %% [markdown]
# ## Training
#
# Both networks have the same layers and the same recipe. `lb.convert` uses the recommended
# posterior, prior and KL weight; nothing is tuned.


# %%
def network():
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 6)
    )


recipe = {"epochs": 40, "batch_size": 50, "lr": 3e-3, "seed": 0, "progress": False}
models = {"plain network": network(), "k-tied": lb.convert(network())}
for model in models.values():
    lb.fit(model, (x[train], y[train]), **recipe)

# %% [markdown]
# ## Scores
#
# AUROC is the probability that an OOD image has a higher entropy than a known one. 1.0 is perfect.

# %%
entropies = {}
for name, model in models.items():
    own = lb.predict(model, x[test], samples=50, seed=1)
    other = lb.predict(model, ood, samples=50, seed=1)
    both = torch.cat([own.entropy, other.entropy])
    auroc = lb.metrics.auroc(both, torch.arange(len(both)) >= len(test))
    sure = (other.probs.amax(-1) > 0.9).float().mean()
    scores = own.metrics(y[test])
    print(f"{name:14} accuracy {scores['accuracy']}, NLL {scores['nll']}")
    print(f"{'':14} AUROC {auroc}")
    print(f"{'':14} more than 90% confident about {100 * sure:.0f}% of OOD images")
    entropies[name] = other.entropy

# %% [markdown]
# ## Figure
#
# The curves show the share of OOD images that a network accepts if it rejects everything above an
# entropy. Lower is better.

# %%
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
lb.plots.style(axes, "largest entropy accepted (nats)", "OOD images accepted (%)")
for name, entropy in entropies.items():
    share = 100 * torch.arange(1, len(entropy) + 1) / len(entropy)
    axes.plot(entropy.sort().values, share, label=name)
axes.legend(edgecolor="none")
plt.show()
