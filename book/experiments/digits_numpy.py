"""Train one encoder layer on handwritten digits in NumPy alone, from five seeds.

``OMP_NUM_THREADS=1 python book/experiments/digits_numpy.py`` writes
``book/data/digits_numpy.json``: for each seed the mean loss and the held-out accuracy of every
epoch, and the seconds it took. A run takes some seconds on one core.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from tqdm import tqdm

from attention.in_numpy.encoder_layer import dropout
from attention.in_numpy.training import (
    Adam,
    batches,
    classifier_gradients,
    classify,
    init_classifier,
    stratified_split,
    warmup_cosine,
)

SETTINGS = {  # chosen on a part of the training digits
    "d_model": 32,
    "num_heads": 4,
    "d_ff": 64,
    "epochs": 30,
    "batch": 32,
    "lr": 0.003,
    "warmup": 50,
    "dropped_pixels": 0.1,
    "held_out": 0.2,
    "seeds": [0, 1, 2, 3, 4],
}
RESULT = Path(__file__).resolve().parent.parent / "data" / "digits_numpy.json"


def load(held_out=0.2):
    """Return the training and the held-out digits, always the same.

    Returns
    -------
    (x, y), (x, y) : ndarrays
        Images (n, 8, 8), a token for each row of pixels, from -1 (empty) to
        1; and the digits (n,).
    """
    digits = load_digits()
    x, y = digits.images / 8 - 1, digits.target
    parts = stratified_split(y, held_out, np.random.default_rng(0))
    return [(x[rows], y[rows]) for rows in parts]


def draw_batches(x, y, batch, epochs, dropped_pixels, rng):
    """Return batches in a list: images, some pixels set to 0, and digits."""
    drawn = []
    for rows in batches(len(x), batch, epochs, rng):
        drawn.append((dropout(x[rows], dropped_pixels, rng=rng), y[rows]))
    return drawn


def train(weights, drawn, num_heads, lr, warmup):
    """Train on each batch in turn; yield its loss before the step.

    The weights are changed in place. The learning rate rises over the first
    `warmup` steps to `lr`, and then falls to 0.
    """
    opt = Adam(weights)
    for step, (images, targets) in enumerate(drawn):
        batch = (images, targets, weights, num_heads)
        loss, gradients = classifier_gradients(*batch)
        opt.lr = lr * warmup_cosine(step, len(drawn), warmup)
        opt.step(gradients)
        yield loss


def accuracy(x, y, weights, num_heads):
    """Return the share of images whose digit has the highest score."""
    scores = classify(x, weights, num_heads)  # (n, 10)
    return float((scores.argmax(axis=-1) == y).mean())


def one_run(seed):
    """Train from one seed; return the curves, the accuracy at the end and the seconds."""
    s = SETTINGS
    (x, y), held_out = load(s["held_out"])
    rng = np.random.default_rng(seed)
    start = time.perf_counter()
    weights = init_classifier(8, s["d_model"], s["d_ff"], 10, rng)
    drawn = draw_batches(x, y, s["batch"], s["epochs"], s["dropped_pixels"], rng)
    an_epoch = len(drawn) // s["epochs"]
    losses, accuracies = [], []
    steps = train(weights, drawn, s["num_heads"], s["lr"], s["warmup"])
    bar = tqdm(steps, total=len(drawn), desc=f"seed {seed}", file=sys.stdout)
    for loss in bar:
        losses.append(loss)
        if len(losses) % an_epoch == 0:
            accuracies.append(accuracy(*held_out, weights, s["num_heads"]))
            bar.set_postfix(accuracy=f"{accuracies[-1]:.3f}")
    by_epoch = np.reshape(losses, (s["epochs"], an_epoch)).mean(axis=1)
    return {
        "seed": seed,
        "loss": [round(float(loss), 5) for loss in by_epoch],
        "held_out": [round(share, 4) for share in accuracies],
        "accuracy": round(accuracies[-1], 4),
        "seconds": round(time.perf_counter() - start, 1),
    }


def main():
    runs = [one_run(seed) for seed in SETTINGS["seeds"]]
    RESULT.parent.mkdir(exist_ok=True)
    text = json.dumps({"settings": SETTINGS, "runs": runs})
    RESULT.write_text(text + "\n", encoding="utf-8")
    final = [run["accuracy"] for run in runs]
    print(f"held-out accuracy: {final}, median {np.median(final):.4f}")


if __name__ == "__main__":
    main()
