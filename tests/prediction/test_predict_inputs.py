"""Predictions for arrays, dictionaries and loaders, and of outputs that are no tensor."""

import warnings
from collections import OrderedDict, UserDict
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import leanbayes as lb
from leanbayes.prediction.sampling import Passes

X, MASK = torch.randn(11, 3), torch.rand(11, 3)
Y = torch.randint(2, (11,))


class ModelOutput(OrderedDict):
    """As those of Hugging Face: a dictionary with attributes."""

    def __getattr__(self, name):
        return self[name]


class Classifier(nn.Module):
    """Named inputs, some of them optional, labels that give a loss, and several outputs."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 8), nn.Linear(8, 2)
        self.seen = []

    def forward(self, inputs=None, attention_mask=None, labels=None, return_dict=True):
        self.seen.append(labels)
        h = torch.tanh(self.body(inputs))
        if attention_mask is not None:
            h = h * attention_mask.mean(-1, keepdim=True)
        logits = self.head(h)
        return ModelOutput(logits=logits, hidden=h) if return_dict else (logits, h)


def logits(output):
    return output.logits


@pytest.fixture
def model():
    return lb.convert(Classifier(), lb.KTied(2, 0.3), lb.priors.Normal(1.0))


@pytest.fixture
def loops(monkeypatch):
    """How many passes of a loop over samples a block runs; folded ones are none."""

    @contextmanager
    def counting():
        count, outputs = [], Passes._outputs
        with monkeypatch.context() as patch:
            patch.setattr(Passes, "_outputs", lambda self: count.append(1) or outputs(self))
            yield count

    return counting


def plain(posterior=None):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return lb.convert(net, posterior or lb.MeanField(0.3), lb.priors.Normal(1.0))


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict])
def test_named_inputs_run_folded(model, loops, kind):
    given = kind(inputs=X, attention_mask=MASK)
    with loops() as count:
        p = lb.predict(model, given, samples=20, seed=3, output=logits)
    assert not count
    assert p.samples.shape == (20, 11, 2)


def test_named_inputs_give_what_inputs_in_order_give(model):
    named = lb.predict(
        model, {"inputs": X, "attention_mask": MASK}, samples=5, seed=3, output=logits
    )
    in_order = lb.predict(model, (X, MASK), samples=5, seed=3, output=logits)
    assert torch.equal(named.samples, in_order.samples)
    swapped = {"attention_mask": MASK, "inputs": X}
    again = lb.predict(model, swapped, samples=5, seed=3, output=logits)
    assert torch.equal(again.samples, named.samples)


def test_named_inputs_reach_their_own_arguments():
    net = Classifier()
    with torch.no_grad():
        expected = net(inputs=X, attention_mask=MASK).logits
    p = lb.predict(net, {"attention_mask": MASK, "inputs": X}, samples=1, output=logits)
    torch.testing.assert_close(p.samples[0], expected)


def test_constants_are_passed_on(model):
    given = {"inputs": X, "attention_mask": None, "return_dict": False}
    p = lb.predict(model, given, samples=3, seed=1, output=lambda o: o[0], batch_size=4)
    whole = lb.predict(model, {"inputs": X}, samples=3, seed=1, output=logits, batch_size=4)
    assert torch.equal(p.samples, whole.samples)


def test_labels_are_no_input(model):
    lb.predict(model, {"inputs": X, "labels": Y}, samples=3, output=logits)
    assert set(model.seen) == {None}
    lb.predict(model, {"inputs": X, "labels": Y}, samples=1, output=logits, targets=())
    assert model.seen[-1] is not None


def test_labels_that_a_model_needs_are_an_input():
    class Conditional(nn.Module):
        def forward(self, x, label):
            return x[:, :2] + label[:, None]

    p = lb.predict(Conditional(), {"x": X, "label": Y}, samples=1)
    torch.testing.assert_close(p.samples[0], X[:, :2] + Y[:, None])


def test_outputs_that_are_no_tensor_say_what_to_choose(model):
    with pytest.raises(TypeError, match=r"a ModelOutput with logits, hidden.*lambda o: o.logits"):
        lb.predict(model, {"inputs": X}, samples=2)
    with pytest.raises(TypeError, match=r"gives a tuple, .*output=lambda o: o\[0\]"):
        lb.predict(model, {"inputs": X, "return_dict": False}, samples=2)
    with pytest.raises(TypeError, match=r"output=lambda o: o\['hidden'\]"):
        lb.predict(model, X, samples=2, output=lambda o: {"hidden": o.hidden})


def test_members_of_a_mixture_see_named_inputs_whole():
    net = Classifier()
    model = lb.convert(net, lb.Rank1(3), lb.priors.Normal(0.1, loc=1.0))
    p = lb.predict(model, {"inputs": X, "attention_mask": MASK}, samples=4, output=logits)
    assert p.samples.shape == (12, 11, 2)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_arrays_get_the_precision_of_the_weights(dtype):
    model, array = plain(), X.numpy().astype(dtype)
    p = lb.predict(model, array, samples=4, seed=1)
    exact = lb.predict(model, torch.from_numpy(array).float(), samples=4, seed=1)
    assert torch.equal(p.samples, exact.samples)
    assert p.samples.dtype == torch.float32
    half = lb.predict(plain().to(torch.bfloat16), array, samples=2)
    assert half.samples.dtype == torch.bfloat16


def test_arrays_of_any_memory():
    model, array = plain(), X.numpy().copy()
    expected = lb.predict(model, X, samples=2, seed=1).samples
    locked = array.copy()
    locked.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (np.asfortranarray(array), array[::-1].copy()[::-1], locked):
            assert torch.equal(lb.predict(model, given, samples=2, seed=1).samples, expected)


def test_whole_numbers_stay_whole():
    model = lb.convert(nn.Embedding(9, 2), lb.MeanField(), lb.priors.Normal(1.0))
    p = lb.predict(model, np.array([1, 8, 3]), samples=2)
    assert p.samples.shape == (2, 3, 2)


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.array([[1.0, None, "a"]], dtype=object), "an array of objects"),
        (np.array([["a", "b", "c"]]), "an array of <U1"),
        (np.zeros((1, 3), dtype=">f4"), "an array of >f4"),
    ],
)
def test_arrays_that_are_no_numbers_are_refused(array, what):
    with pytest.raises(TypeError, match=rf"an input is {what}; give numbers, such as"):
        lb.predict(plain(), array, samples=2)
    with pytest.raises(TypeError, match=rf"input 'x' is {what}"):
        lb.predict(nn.Linear(3, 2), {"x": array}, samples=2)


LOADERS = {
    "inputs": lambda: DataLoader(TensorDataset(X), 4),
    "pairs": lambda: DataLoader(TensorDataset(X, Y), 4),
    "tensors": lambda: iter(X.split(4)),
    "arrays": lambda: (part.double().numpy() for part in X.split(4)),
    "pairs of arrays": lambda: [(part.numpy(), None) for part in X.split(4)],
}


@pytest.mark.parametrize("name", LOADERS)
def test_loaders(name, loops):
    model = plain()
    with loops() as count:
        p = lb.predict(model, LOADERS[name](), samples=10, seed=5)
    assert not count
    assert p.samples.shape == (10, 11, 2)
    first = lb.predict(model, X[:4], samples=10, seed=5)
    last = lb.predict(model, X[8:], samples=10, seed=13)
    assert torch.equal(p.samples[:, :4], first.samples)
    assert torch.equal(p.samples[:, 8:], last.samples)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_dictionaries_of_a_loader(model, batch_size):
    def collate(rows):
        x, mask, y = (torch.stack(part) for part in zip(*rows, strict=True))
        return {"inputs": x, "attention_mask": mask, "labels": y}

    loader = DataLoader(TensorDataset(X, MASK, Y), 4, collate_fn=collate)
    p = lb.predict(model, loader, samples=3, batch_size=batch_size, output=logits)
    assert p.samples.shape == (3, 11, 2)
    assert set(model.seen) == {None}
    pairs = [({"inputs": x, "attention_mask": m}, y) for x, m, y in [(X, MASK, Y)]]
    assert lb.predict(model, pairs, samples=3, output=logits).samples.shape == (3, 11, 2)


def test_targets_can_be_named(model):
    batch = {"inputs": X, "diagnosis": Y}
    with pytest.raises(TypeError, match="an input is called 'diagnosis'; if it is a target, say"):
        lb.predict(model, [batch], samples=2, output=logits)
    p = lb.predict(model, [batch], samples=2, output=logits, targets="diagnosis")
    assert p.samples.shape == (2, 11, 2)
    with pytest.raises(ValueError, match="targets are 'y', and a batch has inputs, diagnosis"):
        lb.predict(model, [batch], samples=2, targets="y")
    with pytest.raises(TypeError, match="targets is 1; batches are dictionaries, so give names"):
        lb.predict(model, [batch], samples=2, targets=1)


def test_parts_of_a_batch_are_inputs_as_far_as_the_model_needs_them():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x, y):
            return self.a(x) - self.b(y)

    net = Two()
    expected = lb.predict(net, (X, MASK), samples=1).samples
    for loader in ([(X, MASK)], [(X, MASK, Y)], [[X, MASK, Y]]):
        assert torch.equal(lb.predict(net, loader, samples=1).samples, expected)
    optional = Classifier()
    masked = lb.predict(optional, [(X, MASK)], samples=1, output=logits, targets=0).samples
    assert torch.equal(masked, lb.predict(optional, (X, MASK), samples=1, output=logits).samples)


def test_loaders_that_give_nothing_to_predict_are_refused():
    used = iter([X])
    next(used)
    with pytest.raises(ValueError, match="there are no batches; a generator that was used up"):
        lb.predict(plain(), used, samples=2)
    with pytest.raises(ValueError, match="a batch has labels, which leaves no input"):
        lb.predict(Classifier(), [{"labels": Y}], samples=2)
    with pytest.raises(ValueError, match="a batch has 1 parts, all of them targets"):
        lb.predict(plain(), DataLoader(TensorDataset(Y), 4), samples=2, targets=1)
    with pytest.raises(ValueError, match="a batch has nothing, which leaves no input"):
        lb.predict(Classifier(), {}, samples=2)


def test_what_is_no_input_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(X)

    for single in (TensorDataset(X), Stream()):
        with pytest.raises(TypeError, match=r"gives single examples; wrap it in torch.utils.data"):
            lb.predict(plain(), single, samples=2)
    for wrong in (3, "text", None):
        with pytest.raises(
            TypeError, match="give a tensor, an array, a DataFrame, a tuple or a dictionary"
        ):
            lb.predict(plain(), wrong, samples=2)
    with pytest.raises(TypeError, match="input 'inputs' is a list; give tensors or arrays"):
        lb.predict(Classifier(), {"inputs": [1, 2]}, samples=2)


def test_a_loader_that_shuffles_is_pointed_out():
    with pytest.warns(UserWarning, match="predictions cannot be matched to examples"):
        lb.predict(plain(), DataLoader(TensorDataset(X), 4, shuffle=True), samples=2)


def test_a_coherent_draw_is_one_function_over_all_batches():
    model = plain()
    same = X[:1].expand(6, 3)
    p = lb.predict(model, list(same.split(2)), samples=4, coherent=True)
    assert p.samples.std(1).max() < 1e-6
    assert lb.predict(model, list(same.split(2)), samples=4).samples.std(1).min() > 1e-4


def test_slices_of_a_loader_need_memory_for_one(model):
    made = []

    def batches():
        for part in X.split(4):
            made.append(1)
            yield {"inputs": part}

    parts = lb.predict_batches(model, batches(), samples=2, batch_size=3, seed=1, output=logits)
    next(parts)
    assert len(made) == 1
    sizes = [part.samples.shape[1] for part in parts]
    assert sizes == [1, 3, 1, 3]


def test_what_one_batch_shows_is_not_tried_with_the_next(monkeypatch):
    class Mixes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(x - x.mean(0))

    tried, folded = [], Passes._vectorized
    model = lb.convert(Mixes(), lb.MeanField(), lb.priors.Normal(1.0))
    monkeypatch.setattr(Passes, "_vectorized", lambda s, *a: tried.append(1) or folded(s, *a))
    lb.predict(model, list(X.split(4)), samples=8)
    assert len(tried) == 1


def test_batch_dim_of_named_inputs():
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, steps):
            return self.layer(steps).mean(0)

    model = lb.convert(Steps(), lb.Rank1(2), lb.priors.Normal(0.1, loc=1.0))
    steps = torch.randn(5, 7, 3)
    with pytest.raises(ValueError, match=r"batch_dim is \(0, 1\), and there are 1 inputs"):
        lb.predict(model, {"steps": steps}, samples=2, batch_dim=(0, 1))
    plain_steps = Steps()
    p = lb.predict(plain_steps, {"steps": steps}, samples=2, batch_dim=1)
    with torch.no_grad():
        torch.testing.assert_close(p.samples[0], plain_steps(steps))


def test_a_real_hugging_face_model():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=3,
    )  # fmt: skip
    net = transformers.BertForSequenceClassification(config)
    model = lb.convert(net, lb.KTied(2), lb.priors.Normal(1.0), include=("classifier",))
    ids = torch.randint(30, (6, 5))
    batch = transformers.BatchEncoding(
        {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": Y[:6]}
    )
    p = lb.predict(model, batch, samples=20, output=lambda o: o.logits)
    assert p.probs.shape == (6, 3)
    assert p.samples.std(0).min() > 0


def test_tables_of_pandas_are_inputs():
    pandas = pytest.importorskip("pandas")
    model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Normal(1.0))
    table = pandas.DataFrame(X.numpy(), columns=list("abc"))
    expected = lb.predict(model, X, samples=3, seed=1).samples
    assert torch.equal(lb.predict(model, table, samples=3, seed=1).samples, expected)
    assert torch.equal(lb.predict(model, X.numpy(), samples=3, seed=1).samples, expected)
    named = {"x": table}
    assert torch.equal(lb.predict(model, named, samples=3, seed=1).samples, expected)
    with pytest.raises(TypeError, match="array of objects; give numbers"):
        lb.predict(model, table.assign(c="x"), samples=3)
