"""Networks of transformers, peft and timm, made from their configs: nothing is downloaded."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import leanbayes as lb

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

POSTERIOR, PRIOR = lb.KTied(2), lb.priors.Normal(0.2)
IDS = torch.arange(21).reshape(3, 7) % 17
MASK = torch.ones(3, 7, dtype=torch.long).index_fill(1, torch.tensor([5, 6]), 0)
LORA = ["**.lora_A.*", "**.lora_B.*"]


def bert(layers: int = 2) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=17,
        hidden_size=12,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=20,
        max_position_embeddings=9,
        num_labels=3,
    )
    return transformers.BertForSequenceClassification(config).eval()


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=17, n_positions=9, n_embd=12, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=20,
        image_size=8,
        patch_size=4,
        num_labels=3,
    )
    return transformers.ViTForImageClassification(config).eval()


def adapted(net: nn.Module) -> nn.Module:
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["query", "value"]
    )
    return peft.get_peft_model(net, config).eval()


TIED = ["transformer.wte", "lm_head"]
NETWORKS = {
    "bert": (bert, {"input_ids": IDS, "attention_mask": MASK}, []),
    "gpt2": (gpt2, {"input_ids": IDS, "attention_mask": MASK}, TIED),
    "vit": (vit, {"pixel_values": torch.linspace(-1, 1, 3 * 3 * 64).reshape(3, 3, 8, 8)}, []),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_converted_called_by_keywords_trained_and_turned_back(name):
    make, inputs, exclude = NETWORKS[name]
    net = make()
    model = lb.convert(net, POSTERIOR, PRIOR, exclude=exclude)
    assert type(model) is type(net)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the ViT reads weight.dtype, which is not a mistake
        noisy = model(**inputs)
    assert type(noisy) is type(net(**inputs))
    assert not torch.allclose(noisy.logits, model(**inputs).logits)
    with lb.using(model, lb.estimators.mean):
        torch.testing.assert_close(model(**inputs).logits, net(**inputs).logits)
    (noisy.logits.square().sum() + lb.kl(model)).backward()
    trained = [p for _, layer in lb.extend.random_maps(model) for p in layer.parameters()]
    assert trained
    unused = {p for n, p in model.named_parameters() if p.grad is None}
    assert unused.isdisjoint(trained)
    back = lb.deterministic(model)
    torch.testing.assert_close(back(**inputs).logits, net(**inputs).logits)


def test_the_tied_head_of_gpt2_is_refused_with_what_to_write():
    words = r"share one weight.*exclude=\['transformer\.wte', 'lm_head'\]"
    with pytest.raises(ValueError, match=words):
        lb.convert(gpt2(), POSTERIOR, PRIOR)
    model = lb.convert(gpt2(), POSTERIOR, PRIOR, exclude=TIED)
    assert model.lm_head.weight is model.transformer.wte.weight
    kinds = [kind for _, kind, _ in lb.plan(gpt2(), POSTERIOR, PRIOR, exclude=TIED).layers]
    assert kinds.count("Conv1D") == 8


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("posterior", [lb.MeanField(), lb.KTied(2), lb.Rank1(2)])
def test_a_plan_counts_every_parameter_and_byte(name, posterior):
    make, _, exclude = NETWORKS[name]
    net, prior = make(), lb.priors.Normal(0.1, loc=1.0)
    state = torch.get_rng_state()
    planned = lb.plan(net, posterior, prior, exclude=exclude)
    assert torch.equal(torch.get_rng_state(), state)
    converted = {
        p for names, *_ in planned.layers for p in net.get_submodule(names[0]).parameters()
    }
    assert sum(layer.numbers for layer in planned.kept) + sum(p.numel() for p in converted) == sum(
        p.numel() for p in net.parameters()
    )
    model = planned.apply(copy.deepcopy(net))

    def size(module):
        tensors = [*module.parameters(), *module.buffers()]
        return sum(t.numel() * t.element_size() for t in tensors)

    assert planned.memory == size(model) - size(net)
    text = str(planned)
    for layer in planned.kept:
        assert f"{layer.numbers:,} ({100 * layer.share:.1f}%)" in text
    assert "Memory added: " in text


def test_attributes_that_other_code_reads_stay():
    net = nn.ModuleDict({"linear": nn.Linear(3, 2), "conv": nn.Conv2d(3, 4, 5, stride=2)})
    model = lb.convert(net, POSTERIOR, PRIOR)
    assert (model["linear"].in_features, model["linear"].out_features) == (3, 2)
    conv = model["conv"]
    assert (conv.out_channels, conv.kernel_size, conv.stride) == (4, (5, 5), (2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weight = conv.weight
        assert (weight.dtype, weight.device, weight.shape) == (
            net["conv"].weight.dtype,
            net["conv"].weight.device,
            net["conv"].weight.shape,
        )
        assert (weight.ndim, weight.size(0), len(weight), weight.numel()) == (4, 4, 4, 300)
    for compute in (lambda: weight + 1, lambda: F.conv2d(torch.ones(1, 3, 5, 5), weight)):
        with pytest.warns(UserWarning, match="posterior mean") as said:
            assert type(compute()) is torch.Tensor
        assert said[0].filename == __file__


def test_bayesian_adapters_leave_the_rest_frozen_and_warn_of_nothing():
    net = adapted(bert())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = lb.convert(net, POSTERIOR, PRIOR, include=LORA)
        model(input_ids=IDS, attention_mask=MASK).logits.sum().backward()
    assert len(list(lb.extend.random_maps(model))) == 8
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert all("lora_" in name or "classifier" in name for name in trained)


def test_freeze_rest_trains_converted_layers_alone():
    model = lb.convert(bert(), POSTERIOR, PRIOR, include=["classifier"], freeze="rest")
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained == {f"classifier.{n}" for n, _ in model.classifier.named_parameters()}
    assert all(p.requires_grad for p in bert().parameters())
    with pytest.raises(ValueError, match="freeze is 'all'; it is 'rest' or None"):
        lb.convert(bert(), POSTERIOR, PRIOR, freeze="all")


class Experts(nn.Module):
    """Weights that no layer kind knows, as mixtures of experts have them."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(4, 6, 6))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.einsum("bi,eij->bj", x, self.experts))


def test_a_conversion_that_leaves_most_weights_is_told():
    with pytest.warns(UserWarning, match=r"91% of the parameters stay.*the model \(Experts\)"):
        lb.convert(Experts(), POSTERIOR, PRIOR)
    planned = lb.plan(Experts(), POSTERIOR, PRIOR)
    assert [(k.name, k.numbers, k.chosen) for k in planned.kept] == [("", 144, False)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what one asked for is no surprise
        lb.convert(bert(), POSTERIOR, PRIOR, include=["classifier"])


def saved_size(model, path, **options):
    return lb.save(model, path, **options).stat().st_size


def shaken(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def assert_same(a, b, **inputs):
    for seed in range(2):
        torch.manual_seed(seed)
        expected = a(**inputs).logits
        torch.manual_seed(seed)
        assert torch.equal(b(**inputs).logits, expected)


@pytest.mark.parametrize("posterior", [lb.MeanField(), lb.KTied(2), lb.Rank1(1)])
def test_an_adapter_file_holds_what_was_trained_and_fits_a_fresh_base(posterior, tmp_path):
    base = bert()
    prior = lb.priors.Normal(0.1, loc=1.0)
    model = lb.convert(adapted(copy.deepcopy(base)), posterior, prior, include=LORA)
    shaken(model)
    small = saved_size(model, tmp_path / "adapter", trainable_only=True)
    assert small < 0.6 * saved_size(model, tmp_path / "whole")
    again = lb.load(adapted(copy.deepcopy(base)), tmp_path / "adapter")
    assert_same(model, again, input_ids=IDS, attention_mask=MASK)
    assert_same(model, lb.load(adapted(bert()), tmp_path / "whole"), input_ids=IDS)
    frozen = {n for n, p in again.named_parameters() if not p.requires_grad}
    assert frozen == {n for n, p in model.named_parameters() if not p.requires_grad}
    before = [p.detach().clone() for p in base.parameters()]
    with pytest.raises(
        lb.errors.LoadError, match="give the pretrained network that it was trained on"
    ):
        lb.load(adapted(bert()), tmp_path / "adapter")
    with pytest.raises(lb.errors.LoadError, match="another architecture"):
        lb.load(adapted(bert(layers=1)), tmp_path / "adapter")
    assert all(torch.equal(p, q) for p, q in zip(base.parameters(), before, strict=True))


def test_peft_and_leanbayes_give_back_the_same_outputs(tmp_path):
    base = bert()
    plain = adapted(copy.deepcopy(base))
    shaken(plain)
    plain.save_pretrained(tmp_path / "peft")
    theirs = peft.PeftModel.from_pretrained(
        copy.deepcopy(base), tmp_path / "peft", is_trainable=True
    ).eval()
    expected = plain(input_ids=IDS, attention_mask=MASK).logits
    torch.testing.assert_close(theirs(input_ids=IDS, attention_mask=MASK).logits, expected)
    model = lb.convert(theirs, POSTERIOR, PRIOR, include=LORA)
    lb.save(model, tmp_path / "ours", trainable_only=True)
    ours = lb.load(adapted(copy.deepcopy(base)), tmp_path / "ours")
    assert_same(model, ours, input_ids=IDS, attention_mask=MASK)
    with lb.using(ours, lb.estimators.mean):
        torch.testing.assert_close(ours(input_ids=IDS, attention_mask=MASK).logits, expected)
    lb.deterministic(ours).save_pretrained(tmp_path / "back")
    back = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "back").eval()
    torch.testing.assert_close(back(input_ids=IDS, attention_mask=MASK).logits, expected)


def test_timm_networks_are_converted():
    timm = pytest.importorskip("timm", reason="timm needs torchvision", exc_type=ImportError)
    for name in ("resnet18", "vit_tiny_patch16_224", "convnext_atto"):
        net = timm.create_model(name, num_classes=3).eval()
        model = lb.convert(net, POSTERIOR, PRIOR)
        x = torch.randn(2, 3, 224, 224)
        with lb.using(model, lb.estimators.mean), torch.no_grad():
            torch.testing.assert_close(model(x), net(x), rtol=1e-3, atol=1e-4)
