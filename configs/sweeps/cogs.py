"""COGS: embeddings scaled up, positions scaled down or relative (Csordás et al.).

Needs a GPU and the folder `cogs/` of docs/how_to/published_tasks.md. Size and training
follow https://github.com/RobertCsordas/transformer_generalization (`main.py`, profile
`cogs_trafo_small`; `sweeps/cogs_trafo.yaml`). 8,192 target positions are about 128
pairs there.
"""

ARMS = {
    'embeddings scaled up': {},
    'positions scaled down': {
        'model.scale_embeddings': False,
        'model.positions': 'sinusoidal(scaled_down=True)',
    },
    'relative': {
        'model.scale_embeddings': False,
        'model.positions': 'transformer_xl',
    },
}


def get_config() -> dict:
    return dict(
        question='Does the scale of embeddings let known words fit new roles?',
        source=(
            'Csordás, Irie and Schmidhuber 2021, "The Devil is in the Detail" '
            '(arXiv 2108.12284): "by revisiting model configurations as basic as '
            'scaling of embeddings, early stopping, relative positional embedding" '
            'accuracy rises "from 35% to 81% on COGS"'
        ),
        config='configs/scan.py',
        overrides={
            'data': 'text(path="cogs", source="en", target="lf")',
            'tokenizer': 'words(vocab_size=1000)',
            'batch.tokens': 8_192,
            'batch.max_length': 160,
            'model.d_model': 512,
            'model.num_heads': 4,
            'model.d_ff': 512,
            'model.num_layers': 2,
            'model.residual': 'post_norm',
            'optimizer.b2': 0.999,
            'optimizer.eps': 1e-8,
            'optimizer.clip': 1.0,
            'optimizer.schedule': 'constant_schedule(value=1e-4)',
            'train.steps': 50_000,
            'evaluation.every': 0,
            # Nested sentences of `gen` have logical forms of 480 words.
            'evaluation.extra_length': 460,
            'evaluation.sets': 'test,gen',
        },
        arms=ARMS,
        seeds=(0, 1, 2, 3, 4),
        base='embeddings scaled up',
        measure='gen exact_match',
        differs=(
            'One embedding matrix for source, target and output, with a standard '
            "deviation of 1/√d instead of Xavier's or He's; batches of tokens, not of "
            'pairs.'
        ),
    )
