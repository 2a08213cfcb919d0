"""One model, several threads and tasks: nobody notices the others."""

import asyncio
import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.prediction.eval_mode import noise_by

THREADS, PREDICTIONS = 8, 50


def network() -> nn.Module:
    net = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)
    )
    return lb.convert(net, lb.KTied(2), lb.priors.Normal(1.0))


def everything(model: nn.Module) -> dict[str, object]:
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = {f"{name}.training": module.training for name, module in model.named_modules()}
    estimators = {f"{name}.estimator": m.estimator for name, m in lb.extend.random_maps(model)}
    return {**state, **modes, **estimators}


def assert_unchanged(model: nn.Module, before: dict[str, object]) -> None:
    for name, value in everything(model).items():
        same = (
            value.equal(before[name]) if isinstance(value, torch.Tensor) else value == before[name]
        )
        assert same, name


@pytest.mark.tried(
    "Serving",
    what="8 threads with 50 predictions each, by a seed, on one model in training mode",
    holds="each equals one thread's; modes, statistics and estimators are as before",
)
@pytest.mark.parametrize("coherent", [False, True])
def test_threads_predict_what_one_thread_does(coherent):
    model, x = network(), torch.randn(5, 6)
    before, noise = everything(model), torch.random.get_rng_state()
    jobs = [(i % 7, 1 + i % 3) for i in range(THREADS * PREDICTIONS)]

    def predicted(job) -> torch.Tensor:
        seed, samples = job
        return lb.predict(model, x, samples=samples, seed=seed, coherent=coherent).samples

    expected = {job: predicted(job) for job in sorted(set(jobs))}
    with ThreadPoolExecutor(THREADS) as pool:
        drawn = list(pool.map(predicted, jobs))
    for job, samples in zip(jobs, drawn, strict=True):
        assert samples.equal(expected[job]), job
    assert_unchanged(model, before)
    assert torch.random.get_rng_state().equal(noise)


@pytest.mark.tried(
    "Serving",
    what="overlapping held and using blocks in threads",
    holds="each thread has its own draw, and the model is random again afterwards",
)
def test_blocks_of_threads_do_not_meet():
    model, x = network().eval(), torch.randn(5, 6)
    before, together = everything(model), threading.Barrier(THREADS)

    def one_function(number: int) -> torch.Tensor:
        block = lb.using(model, lb.estimators.mean) if number == 0 else lb.held(model)
        with torch.no_grad(), block:
            together.wait()
            first = model(x)
            together.wait()
            assert torch.equal(model(x), first)
            return first

    with ThreadPoolExecutor(THREADS) as pool:
        drawn = list(pool.map(one_function, range(THREADS)))
    with lb.using(model, lb.estimators.mean):
        torch.testing.assert_close(drawn[0], model(x))
    assert len({tuple(y.flatten().tolist()) for y in drawn}) == THREADS
    assert not torch.equal(model(x), model(x))
    assert_unchanged(model, before)


@pytest.mark.tried(
    "Serving",
    what="held blocks of asyncio tasks that wait for each other",
    holds="each task has its own draw",
)
@torch.no_grad()  # around all tasks: torch's own switch belongs to the thread
def test_blocks_of_tasks_do_not_meet():
    model, x = network().eval(), torch.randn(5, 6)

    async def one_function() -> torch.Tensor:
        with lb.held(model):
            first = model(x)
            await asyncio.sleep(0)
            assert torch.equal(model(x), first)
            assert torch.equal(await asyncio.to_thread(model, x), first)  # the task's own thread
            return first

    async def all_at_once() -> list[torch.Tensor]:
        return await asyncio.gather(*(one_function() for _ in range(5)))

    drawn = asyncio.run(all_at_once())
    assert len({tuple(y.flatten().tolist()) for y in drawn}) == 5
    assert not torch.equal(model(x), model(x))


@torch.no_grad()
def test_compiled_code_follows_the_blocks_of_its_thread():
    model, x = (
        lb.convert(nn.Linear(3, 2), lb.MeanField(0.5), lb.priors.Normal(1.0)),
        torch.randn(4, 3),
    )
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with lb.held(model):
        first = compiled(x)
        assert torch.equal(compiled(x), first)
        with ThreadPoolExecutor(1) as pool:
            assert not torch.equal(pool.submit(compiled, x).result(), first)
    assert not torch.equal(compiled(x), compiled(x))
    with lb.using(model, lb.estimators.mean):
        torch.testing.assert_close(compiled(x), nn.functional.linear(x, model.weight, model.bias))


@pytest.mark.parametrize("fullgraph", [False, True])
@torch.no_grad()
def test_compiled_code_does_not_guess_between_tasks(fullgraph):
    torch.compiler.reset()  # what was refused before, torch would not try again
    model, x = (
        lb.convert(nn.Linear(3, 2), lb.MeanField(0.5), lb.priors.Normal(1.0)),
        torch.randn(4, 3),
    )
    compiled = torch.compile(model, backend="eager", fullgraph=fullgraph)

    async def one_function() -> None:
        with lb.held(model):
            await asyncio.sleep(0)
            assert torch.equal(compiled(x), model(x))

    async def all_at_once() -> None:
        await asyncio.gather(*(one_function() for _ in range(2)))

    if fullgraph:  # whoever wants one graph is told why there is none
        with pytest.raises(Exception, match="hold or switch layers at once"):
            asyncio.run(all_at_once())
        return
    asyncio.run(all_at_once())  # torch runs what the compiled code refuses, uncompiled
    assert not torch.equal(compiled(x), compiled(x))


def test_modes_come_back_after_the_last_of_several_predictions():
    entered, leave = threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def forward(self, x):
            assert not self.training
            entered.set()
            assert leave.wait(10)
            return x

    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), Waiting())
    model[1].eval()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lb.predict, model, torch.randn(4, 3), samples=1)
        assert entered.wait(10)
        with torch.no_grad():
            lb.predict(model[:2], torch.randn(4, 3), samples=1)
        assert not model[0].training  # someone else still predicts
        leave.set()
        running.result()
    assert [module.training for module in model] == [True, False, True]


@pytest.mark.parametrize(
    "kind", ["rank1_cauchy", "mean_field", "matrix_normal", "uniform", "dropout"]
)
def test_numbers_by_a_seed_do_not_depend_on_other_threads(kind):
    families = {
        "rank1_cauchy": (lb.Rank1(2, "cauchy"), lb.priors.Cauchy(0.1, loc=1.0)),
        "mean_field": (lb.MeanField(0.5), lb.priors.Normal(1.0)),
        "matrix_normal": (lb.posteriors.MatrixNormal(), lb.priors.Normal(1.0)),
        "uniform": (lb.posteriors.ZeroMean(noise="uniform"), lb.priors.LogUniform()),
        "dropout": (lb.posteriors.VariationalDropout(), lb.priors.LogUniform()),
    }

    class AlwaysDropping(nn.Module):
        def forward(self, x):
            return nn.functional.gumbel_softmax(nn.functional.dropout(x, 0.5, training=True))

    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3), AlwaysDropping())
    model, x = lb.convert(net, *families[kind]), torch.randn(5, 6)
    alone = lb.predict(model, x, samples=3, seed=3).samples
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(lb.predict, model, x, samples=3, seed=3).result().samples
        with noise_by(4, model):  # a block by another seed around it
            inside = lb.predict(model, x, samples=3, seed=3).samples
    assert alone.equal(beside)
    assert alone.equal(inside)


@pytest.mark.tried(
    "Serving",
    what="100 samples of very many rows",
    holds="predict_batches keeps one slice at a time: memory does not grow with rows or samples",
)
@pytest.mark.parametrize("samples", [10, 400])
def test_memory_does_not_grow_with_samples(samples):
    model, x = (
        lb.convert(nn.Linear(4, 10), lb.KTied(2), lb.priors.Normal(1.0)),
        torch.randn(3000, 4),
    )
    sizes = [p.samples.numel() for p in lb.predict_batches(model, x, samples=samples)]
    assert max(sizes) <= 2**14 * 10
    assert sum(sizes) == samples * 3000 * 10


def test_slices_are_a_prediction():
    model, x = network(), torch.randn(50, 6)
    with lb.using(model, lb.estimators.mean):
        whole = lb.predict(model, x, samples=1).probs
        parts = torch.cat([p.probs for p in lb.predict_batches(model, x, samples=1, batch_size=7)])
    torch.testing.assert_close(parts, whole)
    again = [
        torch.cat(
            [p.samples for p in lb.predict_batches(model, x, samples=2, batch_size=7, seed=s)], 1
        )
        for s in (0, 0, 1)
    ]
    assert again[0].equal(again[1])
    assert not again[0].equal(again[2])


@pytest.mark.parametrize("seed", [None, 3])
def test_coherent_slices_are_one_function(seed):
    model, x = network(), torch.randn(4, 6).repeat(3, 1)
    parts = list(lb.predict_batches(model, x, samples=2, batch_size=4, coherent=True, seed=seed))
    for part in parts[1:]:
        torch.testing.assert_close(part.samples, parts[0].samples)


def test_bad_slices_are_refused():
    model = network()
    with pytest.raises(ValueError, match="samples is 0"):
        list(lb.predict_batches(model, torch.randn(4, 6), samples=0))
    with pytest.raises(ValueError, match="batch_size is -1"):
        list(lb.predict_batches(model, torch.randn(4, 6), batch_size=-1))


def test_a_copy_is_not_held():
    model, x = network().eval(), torch.randn(5, 6)
    with lb.held(model):
        other = copy.deepcopy(model)
        assert not torch.equal(other(x), other(x))
