"""`wmt_big` for GPUs and TPUs: bfloat16 operands, and rows for eight devices."""

from ml_collections import ConfigDict

from configs import wmt_base_bf16, wmt_big


def get_config() -> ConfigDict:
    config = wmt_big.get_config()
    for_accelerators = wmt_base_bf16.get_config()
    config.model.dtype = for_accelerators.model.dtype
    config.batch.rows_multiple = for_accelerators.batch.rows_multiple
    return config
