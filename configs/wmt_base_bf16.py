"""`wmt_base` for GPUs and TPUs: bfloat16 operands, and rows for eight devices.

Parameters, sums, the softmax, norms, logits, the loss and the optimizer stay float32.
"""

from ml_collections import ConfigDict

from configs import wmt_base


def get_config() -> ConfigDict:
    config = wmt_base.get_config()
    config.model.dtype = 'bfloat16'
    config.batch.rows_multiple = 8
    return config
