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
# # Shrink a network
#
# A relevance prior learns which units matter. The others are pruned, and `lb.compact` removes
# them. The result is a smaller plain network with the same outputs.
#
# ## Data
#
# The digits of scikit-learn, in three parts: to train, to choose a threshold, and to test.

# %%
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import leanbayes as lb

torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 8 - 1, torch.tensor(labels)
train, choice, test = torch.randperm(len(x)).split([1000, 300, len(x) - 1300])

# %% [markdown]
# ## Training
#
# `GroupARD` has one relevance for every row and every column of a weight matrix.
# `lb.training.update_priors` sets them in closed form after each step.

# %%
net = nn.Sequential(
    nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
)
model = lb.convert(net, lb.MeanField(0.01), lb.priors.GroupARD(0.3))
steps = 400
opt = torch.optim.Adam(lb.parameter_groups(model, lr=0.01))
decay = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
for step in range(steps):
    batch = train[torch.randint(len(train), (200,))]
    nll = F.cross_entropy(model(x[batch]), y[batch])
    weight = min(1.0, 2 * step / steps)
    loss = lb.elbo(nll, model, data_size=len(train), weight=weight).loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    decay.step()
    lb.training.update_priors(model)

# %% [markdown]
# ## Pruning and compaction
#
# Rows and columns below a relevance are removed. A threshold may cost at most half a point of
# accuracy on images that are set aside for this choice; the smallest such network is chosen.


# %%
def shrunk(threshold):
    pruned = lb.prune(model, by="relevance", groups="row", threshold=threshold, include=["0", "2"])
    pruned = lb.prune(pruned, by="relevance", groups="column", threshold=threshold)
    return lb.compact(lb.deterministic(pruned), x[train])


@torch.no_grad()
def accuracy(network, rows):
    return 100 * (network(x[rows]).argmax(-1) == y[rows]).float().mean().item()


whole = lb.deterministic(model)
found = [shrunk(threshold) for threshold in (0.05, 0.02, 0.005, 0.001, 1e-4)]
sizes = [report.multiply_adds[1] for _, report in found]
good = [
    i for i, (net, _) in enumerate(found) if accuracy(net, choice) >= accuracy(whole, choice) - 0.5
]
chosen = min(good, key=lambda i: sizes[i])
full = found[0][1].multiply_adds[0]
print(f"multiply-adds per image: {full:,} → {sizes[chosen]:,}")
print(f"test accuracy: {accuracy(whole, test):.1f}% → {accuracy(found[chosen][0], test):.1f}%")
print(found[chosen][0])

# %% [markdown]
# ## Figure

# %%
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
accuracies = [accuracy(net, test) for net, _ in found]
lb.plots.style(axes, "multiply-adds per image", "test accuracy (%)")
axes.plot(sizes, accuracies, "o-", label="pruned and compacted")
axes.plot(sizes[chosen], accuracies[chosen], "o", markersize=12, mfc="none", label="chosen")
axes.plot(full, accuracy(whole, test), "s", label="full network")
axes.legend(edgecolor="none")
axes.set_xscale("log")
plt.show()
