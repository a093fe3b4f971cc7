"""Cut the queries and keys of a real model's first layer: ``book/data/minilm_layer.npz``.

``python book/experiments/extract_minilm_layer.py FOLDER`` needs the same files and packages as
``extract_minilm_head.py``, which says where to get them, and takes a few seconds. The sentences
are the same as there.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from extract_minilm_head import D_K, NUM_HEADS, OTHER_SENTENCES, SENTENCE, Model, softmax

OUT = Path(__file__).resolve().parent.parent / "data" / "minilm_layer.npz"
LAYER = 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds model.safetensors and tokenizer.json")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()

    model = Model(options.folder)
    tokens, queries, keys, errors = [], [], [], []
    for sentence in (SENTENCE, *OTHER_SENTENCES):
        own_tokens, inputs, maps = model.run(sentence)
        Q, K = (
            model.linear(inputs[LAYER], f"encoder.layer.{LAYER}.attention.self.{part}").astype(
                np.float16
            )
            for part in ("query", "key")
        )  # (L, h * d_k)
        tokens.append(own_tokens)
        queries.append(Q)
        keys.append(K)
        for head in range(NUM_HEADS):
            part = slice(head * D_K, (head + 1) * D_K)
            scores = Q[:, part].astype(float) @ K[:, part].T.astype(float) / math.sqrt(D_K)
            errors.append(np.abs(softmax(scores) - maps[LAYER, head]).max())
    np.savez(
        options.out,
        layer=np.int16(LAYER),
        num_heads=np.int16(NUM_HEADS),
        lengths=np.array([len(own) for own in tokens], dtype=np.int16),
        tokens=np.concatenate(tokens),
        Q=np.concatenate(queries),
        K=np.concatenate(keys),
    )
    print(f"weights from the float16 data differ by at most {max(errors):.4f}")
    print(f"{options.out.name}: {options.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
