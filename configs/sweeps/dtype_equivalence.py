"""`dtype` by loss, with enough seeds to show equivalence.

The standard deviation over seeds is 4% of the loss and 0.5 BLEU (the three seeds of
`dtype`). If the dtypes do not differ, 16 seeds show with a power of 84% that they are
equivalent within 5% of the loss. Equivalence within 0.5 BLEU would need 24 or more.
"""

from configs.sweeps import dtype


def get_config() -> dict:
    return dtype.get_config() | dict(
        seeds=tuple(range(10, 26)), margin='5%', measure=['test loss', 'test bleu']
    )
