"""Letters to phonemes by depth, small enough for two CPU cores."""

from configs.sweeps import g2p


def get_config() -> dict:
    sweep = g2p.get_config()
    sweep['overrides'] = {
        'data': g2p.DATA,
        'batch.tokens': 4_096,
        'model.dropout': 0.1,
        'model.dtype': 'bfloat16',
        'optimizer.schedule': 'cosine(peak=2e-3, warmup=0.1)',
        'train.steps': 3_000,
        'evaluation.every': 3_000,
        'evaluation.sets': 'test',
    }
    sweep['differs'] += (
        ' Half the width, 3,000 steps of 20,000, and a rate that falls as a cosine.'
    )
    return sweep
