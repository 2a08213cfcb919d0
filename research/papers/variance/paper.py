"""Variance networks [variance]: citation, claims and checklist."""

from research.papers.variance.blocks import study_blocks
from research.papers.variance.trained_blocks import after_blocks
from research.publishing.paper import Claim, Item, Paper, Work

__all__ = ["PAPER"]

_CLAIMS = (
    Claim(
        "A network with a zero-mean layer is as good as one with means, if samples are averaged: "
        "{printed percent: after/mnist-lenet5-zero-mean accuracy.ensemble} on MNIST. Its means "
        "alone are chance.",
        "Yes: {percent: after/mnist-lenet5-zero-mean accuracy.ensemble} by 20 samples, {percent: "
        "after/mnist-lenet5-zero-mean accuracy.mean} by means; dropout has {percent: "
        "after/mnist-lenet5-dropout accuracy.ensemble}.",
        "[accuracies](#one-sample-means-averages)",
    ),
    Claim(
        "On CIFAR-10 and CIFAR-100 a variance network of 20 samples equals dropout: {printed "
        "percent: after/cifar10-vgg-variance accuracy.ensemble} and {printed percent: "
        "after/cifar10-vgg-dropout accuracy.ensemble}, {printed percent: "
        "after/cifar100-coarse-vgg-variance accuracy.ensemble} and {printed percent: "
        "after/cifar100-coarse-vgg-dropout accuracy.ensemble}.",
        "On a smaller network, trained for less, on CIFAR-10 yes: {percent: "
        "after/cifar10-vgg-variance accuracy.ensemble} and {percent: after/cifar10-vgg-dropout "
        "accuracy.ensemble}. On CIFAR-100 not so soon: {percent: "
        "after/cifar100-coarse-vgg-variance accuracy.ensemble} and {percent: "
        "after/cifar100-coarse-vgg-dropout accuracy.ensemble}.",
        "[accuracies](#one-sample-means-averages)",
    ),
    Claim(
        "Signs or uniform noise do as well as normal noise: {printed percent: "
        "after/mnist-lenet5-bernoulli accuracy.ensemble} for both.",
        "Nearly: {percent: after/mnist-lenet5-bernoulli accuracy.ensemble} and {percent: "
        "after/mnist-lenet5-uniform accuracy.ensemble}.",
        "[accuracies](#one-sample-means-averages)",
    ),
    Claim(
        "The fewer parameters noise has, the higher the ELBO: zero means, then one α a layer, a "
        "neuron, free variances, one α a weight.",
        "Yes, in this order: {value: after/mnist-lenet5-zero-mean elbo.elbo}, {value: "
        "after/mnist-lenet5-layer elbo.elbo}, {value: after/mnist-lenet5-neuron elbo.elbo}, "
        "{value: after/mnist-lenet5-additive elbo.elbo}, {value: after/mnist-lenet5-weight "
        "elbo.elbo}.",
        "[five ways](#five-ways-to-write-one-layer)",
    ),
    Claim(
        "Variational dropout becomes a variance layer during training: the accuracy of the means "
        "falls to chance, that of the network without means rises.",
        "Yes: from {percent: phases/mnist-lenet5-phases-log-uniform mean.most} to {percent: "
        "phases/mnist-lenet5-phases-log-uniform mean.last}, and to {percent: "
        "phases/mnist-lenet5-phases-log-uniform zero_mean.last}; on the VGG-like network from "
        "{percent: phases/cifar10-vgg-variance mean.most} to {percent: phases/cifar10-vgg-variance "
        "mean.last}, and to {percent: phases/cifar10-vgg-variance zero_mean.last} of {percent: "
        "phases/cifar10-vgg-variance ensemble.last}.",
        "[phases](variance/phases.md)",
    ),
    Claim(
        "So it does under an ARD and, later, under a Student-t prior.",
        "Under ARD yes: log α comes to {value: phases/mnist-lenet5-phases-ard dense1.log_alpha}. "
        "Under Student-t it comes to {value: phases/mnist-lenet5-phases-student-t "
        "dense1.log_alpha} and stays there.",
        "[phases](variance/phases.md)",
    ),
    Claim(
        "In LeNet-5 with variational dropout everywhere, only the first dense layer turns.",
        "It is the only one on its way when 8 epochs end: its log α is {value: "
        "after/mnist-lenet5-all-layers alphas.dense1.log_alpha}, and "
        "{value: after/mnist-lenet5-all-layers alphas.conv1.log_alpha}, {value: "
        "after/mnist-lenet5-all-layers alphas.conv2.log_alpha} and {value: "
        "after/mnist-lenet5-all-layers alphas.dense2.log_alpha} in the others.",
        "[phases](variance/phases.md#which-layers-turn)",
    ),
    Claim(
        "98 % of a variance layer can be pruned by σ; the signal-to-noise ratio, by which one "
        "prunes otherwise, is of no use.",
        "Yes: with 2 % left {percent: after/mnist-lenet5-zero-mean pruning.scale.2}, with 1 % "
        "{percent: after/mnist-lenet5-zero-mean pruning.scale.1}. What has log α ≤ 3 is nothing: "
        "{percent: after/mnist-lenet5-zero-mean pruning.sparse}. The VGG-like network has "
        "{percent: after/cifar10-vgg-variance pruning.scale.50} with half of its weights by σ, and "
        "{percent: after/cifar10-vgg-variance pruning.snr.50} by signal-to-noise.",
        "[pruning](#pruning)",
    ),
    Claim(
        "With tanh and no biases one sample has {printed percent: after/mnist-lenet5-tanh-dense1 "
        "accuracy.sample}, and {printed percent: after/mnist-lenet5-tanh-both accuracy.sample} "
        "with two such layers.",
        "It cannot: such a network is odd in its noise and stays at chance ({percent: "
        "after/mnist-lenet5-tanh-dense1 accuracy.sample} and {percent: "
        "after/mnist-lenet5-tanh-both accuracy.sample}). With a shift {percent: "
        "after/mnist-lenet5-tanh-dense1-bias accuracy.sample}.",
        "[proof](variance/odd.md)",
    ),
    Claim(
        "Policies with variance layers explore: slower at first, better in the end.",
        "Slower, yes. On CartPole it ends at {value: policy/CartPole-v0-variance last_100} of 200, "
        "where the others have {value: policy/CartPole-v0-deterministic last_100}. On Acrobot it "
        "has {value: policy/Acrobot-v1-variance last_100} after 1600 episodes, a policy with means "
        "and noise {value: policy/Acrobot-v1-noise last_100}, and a deterministic one, two of "
        "whose nine seeds end at the worst return, {value: policy/Acrobot-v1-deterministic "
        "last_100}.",
        "[policies](variance/policies.md)",
    ),
    Claim(
        "Variance networks resist targeted attacks longer than others, their ensembles most.",
        "Their ensemble does, if the gradient is averaged over draws as in the paper: after 20 "
        "steps {percent: attack/variance ensemble averaged} of images reach their target, in the "
        "deep ensemble {percent: attack/deep ensemble averaged}, and {percent: attack/variance "
        "averaged}, {percent: attack/dropout averaged} and {percent: attack/deterministic "
        "averaged} in single networks with zero means, dropout and neither. By the gradient of the "
        "averaged probability the deep ensemble resists longer: {percent: attack/deep ensemble "
        "of_average} against {percent: attack/variance ensemble of_average}, and further apart on "
        "the way.",
        "[attacks](variance/attacks.md)",
    ),
)

_CHECKLIST = {
    "VN1": Item(
        "eq. 4, 39–42", "Dense and convolutional variance layers have the analytic moments."
    ),
    "VN2": Item("section 2, Table 2", "Propagating means through a variance network is chance."),
    "VN3": Item(
        "section 3.2", "The toy of four classes has two kinds of solutions.", "variance/toy.md"
    ),
    "VN4": Item("section 3.3", "Bernoulli and uniform noise work, sampled and by their moments."),
    "VN5": Item("eq. 6–8", "The KL from the log-uniform prior, exact and approximated, is right."),
    "VN6": Item("eq. 10", "The Student-t prior tends to the log-uniform one, by one sample."),
    "VN7": Item("eq. 11", "The ARD prior is the best of all zero-mean normal priors."),
    "VN8": Item("section 4.3", "The KL falls with α under all three priors."),
    "VN9": Item("appendix F", "A zero-mean weight costs a constant under the log-uniform prior."),
    "VN10": Item("appendix A", "The distance to the zero-mean posterior is exact and bounded."),
    "VN11": Item("eq. 14", "Five parameterizations; a shared α counts once for every weight."),
    "VN12": Item(
        "Table 1",
        "ELBOs have the order zero-mean, layer, neuron, additive, weight.",
        "variance.md",
    ),
    "VN13": Item(
        "Figures 3 and 8", "log α grows over training with a phase transition.", "variance.md"
    ),
    "VN14": Item(
        "section 6.1",
        "In LeNet only the first dense layer becomes a variance layer.",
        "variance/phases.md",
    ),
    "VN15": Item(
        "Figure 5", "Weights with the smallest σ can be pruned, up to 98 %.", "variance.md"
    ),
    "VN16": Item("Figure 4", "One sample is much worse than an average over 200.", "variance.md"),
    "VN17": Item(
        "appendix C", "With tanh and no biases all activations have mean zero.", "variance/odd.md"
    ),
    "VN18": Item("appendix D", "Activations of a class differ in their spread.", "variance.md"),
    "VN19": Item("code", "Permuted σ destroy the accuracy.", "variance.md"),
    "VN20": Item(
        "section 6.2", "Variance layers explore in reinforcement learning.", "variance/policies.md"
    ),
    "VN21": Item(
        "section 6.3", "Variance layers resist iterated adversarial attacks.", "variance/attacks.md"
    ),
    "VN22": Item(
        "section 7",
        "Pruning by the signal-to-noise ratio fails on zero-mean layers.",
        "variance.md",
    ),
}

PAPER = Paper(
    name="variance",
    short="variance",
    subject="Variance networks",
    works=(
        Work(
            "variance",
            "Kirill Neklyudov, Dmitry Molchanov, Arsenii Ashukha and Dmitry Vetrov",
            2019,
            "Variance Networks: When Expectation Does Not Meet Your Expectations",
            "ICLR 2019",
        ),
    ),
    claims=_CLAIMS,
    checklist=_CHECKLIST,
    blocks=(after_blocks, study_blocks),
)
