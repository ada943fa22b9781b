"""Adam, Muon and SOAP of `optimizers_tuned`, with a control, judged by loss.

SOAP leaves out the vocabulary, as its authors intend, and its control is Adam with its
constants. Four rates have two trials each.
"""

from configs.sweeps import optimizers_tuned

CONTROL = 'Adam, β 0.95'
ARMS = {
    'Adam': optimizers_tuned.ARMS['Adam'],
    CONTROL: optimizers_tuned.ARMS['Adam']
    | {'optimizer.b1': 0.95, 'optimizer.b2': 0.95},
    'Muon': optimizers_tuned.ARMS['Muon'],
    'SOAP': optimizers_tuned.ARMS['SOAP'],
    # The base's longer run gives its loss at the time that other arms take.
    'Adam, 1,200 steps': {
        'optimizer.schedule': optimizers_tuned.COSINE.replace('=600', '=1200'),
        'train.steps': 1_200,
    },
}


def get_config() -> dict:
    tuned = optimizers_tuned.get_config()
    return tuned | dict(
        question='Do Muon and SOAP train better than Adam, per step and at equal time?',
        arms=ARMS,
        tune=tuned['tune'] | dict(values=[8e-3, 1.6e-2, 3.2e-2], seeds=(100, 101)),
        seeds=tuple(range(10, 14)),
        base_seeds=tuple(range(10, 18)),
        contrasts=[
            (CONTROL, 'Adam'),
            ('Muon', 'Adam'),
            ('SOAP', 'Adam'),
            ('SOAP', CONTROL),
        ],
        margin=0.0,
        measure='test loss',
        departures={
            'Muon': 'Embeddings, norms and biases are trained by NAdam, not AdamW.',
            'SOAP': 'Eigenbases are computed every 10 steps; no other was tried.',
        },
    )
