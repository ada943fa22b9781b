"""Letters to phonemes, with the dictionary of Carnegie Mellon University."""

from ml_collections import ConfigDict

from configs import wmt_small


def get_config() -> ConfigDict:
    config = wmt_small.get_config()
    config.data = 'cmudict'
    # Letters and phonemes. The cost estimate uses this size until they are counted.
    config.tokenizer = 'words(vocab_size=200)'
    config.batch.tokens = 2_048

    config.model.num_layers = 3
    config.model.d_ff = 512

    config.optimizer.schedule = 'cosine(peak=3e-3, warmup=0.1)'
    config.train.steps = 1_500
    config.evaluation.every = 500
    # Error rate of phonemes, and accuracy of whole words.
    config.evaluation.metrics = '[error_rate, exact_match]'
    return config
