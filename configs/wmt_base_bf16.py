"""`wmt_base` for GPUs and TPUs: bfloat16 operands, and rows for eight devices.

    python -m experiments.run --config=configs/wmt_base_bf16.py

Parameters, sums, the softmax, norms, logits, the loss and the optimizer are float32 as
in `wmt_base`. The dtype belongs to the run, not to the machine: it also applies if the
run is resumed or evaluated on a CPU.
"""

from ml_collections import ConfigDict

from configs import wmt_base


def get_config() -> ConfigDict:
    config = wmt_base.get_config()
    config.model.dtype = 'bfloat16'
    config.batch.rows_multiple = 8
    return config
