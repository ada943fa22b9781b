"""SCAN: from commands to actions (Lake and Baroni 2018).

The size is that of Csordás et al. (2021), with fewer steps and smaller batches.
"""

from ml_collections import ConfigDict

from configs import wmt_small


def get_config() -> ConfigDict:
    config = wmt_small.get_config()
    config.data = 'scan(split="simple")'
    # Few words. The cost estimate uses this size until they are counted.
    config.tokenizer = 'words(vocab_size=100)'
    config.batch.tokens = 2_048

    config.model.num_layers = 3
    config.model.num_heads = 8
    config.model.d_ff = 256

    config.optimizer.schedule = 'cosine(peak=1e-3, warmup=0.1)'
    config.train.loss = 'cross_entropy(label_smoothing=0)'
    config.train.steps = 1_500
    config.evaluation.every = 500
    config.evaluation.metrics = 'exact_match'
    config.evaluation.decode = 'greedy'
    return config
