"""Float32 errors of the logits of the tests' checkpoints, here and in Transformers.

    python -m benchmarks.parity

The checkpoints are small and random. The reference is Transformers' result in float64
(`tests/goldens/families/`).
"""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.command_line import console

GOLDENS = Path('tests/goldens/families')


def main() -> None:
    rows = [_differences(path) for path in sorted(GOLDENS.iterdir())]
    names = ['checkpoint', 'largest logit', 'flaxformer_lite', 'Transformers']
    print(console.table(names, rows))


def _differences(path: Path) -> list[Any]:
    import flaxformer_lite

    golden = np.load(path / 'golden.npz')
    tokens = flaxformer_lite.describe_pretrained(path).special_tokens
    real = golden['labels'] != tokens.padding
    exact = golden['logits'][real]
    differences = [
        np.abs(compute(path, golden)[real] - exact).max() for compute in (ours, theirs)
    ]
    return [path.name, float(np.abs(exact).max()), *(f'{x:.1e}' for x in differences)]


def ours(path: Path, golden: Any) -> np.ndarray:
    import jax

    import flaxformer_lite

    model, variables = flaxformer_lite.from_pretrained(path)
    logits = jax.jit(model.apply)(variables, golden['source'], golden['inputs'])
    return np.asarray(logits)


def theirs(path: Path, golden: Any) -> np.ndarray:
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(path).eval()
    source, inputs = (torch.from_numpy(golden[k]).long() for k in ('source', 'inputs'))
    mask = source != model.config.pad_token_id
    with torch.inference_mode():
        out = model(input_ids=source, attention_mask=mask, decoder_input_ids=inputs)
    return out.logits.numpy()


if __name__ == '__main__':
    main()
