"""Train, test and predict with Lightning, resume from a checkpoint, and detect unseen classes.

A perceptron learns the digits 0 to 4 of scikit-learn. It then predicts 5 to 9 as well, which are
not in its training data. Batches are dictionaries, as in Hugging Face libraries. Needs
``pip install -c constraints.txt -e '.[lab]'``.
"""

import argparse
import tempfile
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

import leanbayes as lb
from leanbayes.lightning import BayesianModule
from leanbayes.metrics import auroc


class Net(nn.Module):
    """A network that takes its input by keyword, as Hugging Face models do."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 5))

    def forward(self, *, pixels):
        return self.layers(pixels)


def rows():
    """Return training and test images of the digits 0 to 4, and images of the others."""
    images, digits = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32) / 16
    labels = torch.tensor(digits)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    known, ood = order[labels[order] < 5], order[labels[order] >= 5]
    every = {"pixels": pixels, "labels": labels}

    def of(chosen):
        return [{name: values[i] for name, values in every.items()} for i in chosen.tolist()]

    return of(known[:600]), of(known[600:]), of(ood)


def draw(entropies, path):
    """Draw histograms of entropies."""
    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    label = "entropy of the prediction (nats; at most log 5 = 1.61)"
    axes = lb.plots.style(figure.subplots(), label, "density")
    for name, values in entropies.items():
        axes.hist(values, bins=30, range=(0, 1.61), density=True, alpha=0.6, label=name)
    axes.legend(edgecolor="none")
    figure.savefig(path, dpi=120)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few epochs only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for log, checkpoint and picture")
    options = parser.parse_args(arguments)
    folder = options.out or Path(tempfile.mkdtemp())

    torch.set_num_threads(1)  # small networks run fastest on one
    torch.manual_seed(options.seed)
    known, held_out, ood = rows()
    model = lb.convert(Net(), lb.KTied(rank=2), lb.priors.Normal(0.3))
    module = BayesianModule(
        model,
        data_size=len(known),
        schedule=lb.training.schedules.Constant(0.1),  # 600 images are few for 6,900 weights
        lr=3e-3,
        samples=50,
    )
    trainer = L.Trainer(
        max_epochs=5 if options.quick else 60,
        accelerator="cpu",
        logger=CSVLogger(folder, name="log"),  # its hparams.yaml has the posterior and all options
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    trainer.fit(module, DataLoader(known, batch_size=50, shuffle=True))
    trainer.save_checkpoint(folder / "digits.ckpt")

    again = BayesianModule.from_checkpoint(Net(), folder / "digits.ckpt")
    (scores,) = trainer.test(again, DataLoader(held_out, batch_size=100), verbose=False)
    entropies = {}
    for name, given in {"digits 0 to 4": held_out, "digits 5 to 9": ood}.items():
        predictions = trainer.predict(again, DataLoader(given, batch_size=100))
        entropies[name] = torch.cat([prediction.entropy for prediction in predictions])
    draw(entropies, folder / "entropies.png")

    both = torch.cat(list(entropies.values()))
    results = {
        "accuracy": scores["test/accuracy"],
        "nll": scores["test/nll"],
        "auroc": auroc(both, torch.arange(len(both)) >= len(held_out)).value,
    }
    print("".join(f"{name} {value:.3f}  " for name, value in results.items()))
    print(f"picture: {folder / 'entropies.png'}")
    return results


if __name__ == "__main__":
    main()
