"""Serve a trained network from a pool of threads, with reproducible predictions.

All threads share one model. Every request has a seed, so its prediction can be repeated and does
not depend on other requests. The picture shows how long requests take, and that samples disagree
about images that are not digits. Needs ``pip install -c constraints.txt -e '.[lab]'``.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

import leanbayes as lb

THREADS = (1, 2, 4)


def digits():
    """Return training and test images as vectors of 64 numbers between 0 and 1, with labels."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1200], order[1200:]
    return x[train], y[train], x[test], y[test]


class Server:
    """A model that predicts for requests; a request is a few images and a seed."""

    def __init__(self, model, samples):
        self.model, self.samples = model, samples

    def answer(self, images, seed):
        p = lb.predict(self.model, images, samples=self.samples, seed=seed)
        return p.probs, p.mutual_information

    def timed(self, request):
        began = time.perf_counter()
        answer = self.answer(*request)
        return answer, time.perf_counter() - began


def serve(server, requests, threads):
    """Return predictions in the order of the requests, and the seconds of each."""
    with ThreadPoolExecutor(threads) as pool:
        done = list(pool.map(server.timed, requests))
    return [answer for answer, _ in done], [seconds for _, seconds in done]


def draw(path, seconds, known, ood):
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    lb.plots.style(left, "threads", "milliseconds per request")
    lb.plots.style(right, "mutual information (nats)", "images")
    times = [[1000 * s for s in values] for values in seconds.values()]
    left.boxplot(times, showfliers=False)
    left.set_xticklabels([str(threads) for threads in seconds])
    left.set_ylim(bottom=0)
    bins = torch.linspace(0, float(torch.cat([known, ood]).max()), 30).numpy()
    right.hist(known.numpy(), bins, alpha=0.6, label="digits")
    right.hist(ood.numpy(), bins, alpha=0.6, label="shuffled pixels")
    right.legend(edgecolor="none")
    figure.savefig(path, dpi=120)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few epochs and requests only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="serve_threads.png")
    options = parser.parse_args(arguments)
    epochs, requests, samples = (15, 40, 10) if options.quick else (30, 200, 50)

    torch.set_num_threads(1)  # threads serve requests; each computes on one core
    torch.manual_seed(options.seed)
    x, y, x_test, y_test = digits()
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = lb.convert(net)
    recipe = {"epochs": epochs, "batch_size": 100, "lr": 3e-3, "seed": options.seed}
    lb.fit(model, (x, y), **recipe)
    server = Server(model, samples)

    images = torch.cat([x_test, x_test.gather(-1, torch.rand_like(x_test).argsort(-1))])
    chosen = [torch.randint(len(images), (8,)) for _ in range(requests)]
    asked = [(images[index], seed) for seed, index in enumerate(chosen)]
    alone = [server.answer(*request) for request in asked]
    seconds, equal = {}, {}
    for threads in THREADS:
        answers, seconds[threads] = serve(server, asked, threads)
        pairs = zip(answers, alone, strict=True)
        equal[threads] = all(
            torch.equal(a, b) for ours, own in pairs for a, b in zip(ours, own, strict=True)
        )

    ood = torch.cat(chosen) >= len(x_test)
    information = torch.cat([information for _, information in alone])
    draw(options.picture, seconds, information[~ood], information[ood])
    labels = torch.cat([probs.argmax(-1) for probs, _ in alone])
    right = labels == y_test[torch.cat(chosen) % len(x_test)]
    print("threads  same results  median ms per request")
    for threads in THREADS:
        median = sorted(seconds[threads])[requests // 2]
        print(f"{threads:7d}  {equal[threads]!s:>12}  {1000 * median:21.1f}")
    print(f"{requests} requests of 8 images each, {samples} samples; see {options.picture}")
    return {
        "equal": all(equal.values()),
        "accuracy": right[~ood].float().mean().item(),
        "known": information[~ood].mean().item(),
        "ood": information[ood].mean().item(),
    }


if __name__ == "__main__":
    main()
