"""Adam, Muon and SOAP of `optimizers_tuned`, with a control, judged by loss.

SOAP leaves out the vocabulary, as its authors intend, and its control is Adam with its
constants. Each of three rates has two trials.
"""

from configs.sweeps import optimizers_tuned

CONTROL = 'Adam, β 0.95'
ARMS = {
    'Adam': {},
    CONTROL: {'optimizer.b1': 0.95, 'optimizer.b2': 0.95},
    'Muon': {'optimizer.name': optimizers_tuned.ARMS['Muon']['optimizer.name']},
    'SOAP': {'optimizer.name': 'soap'},
    # The base's longer run gives its loss at the time that other arms take.
    'Adam, 1,200 steps': {'train.steps': 1_200},
}
RATES = [8e-3, 1.6e-2, 3.2e-2]


def get_config() -> dict:
    tuned = optimizers_tuned.get_config()
    return tuned | dict(
        question='Do Muon and SOAP train better than Adam, per step and at equal time?',
        arms=ARMS,
        tune=dict(field='optimizer.schedule.peak', values=RATES, seeds=(100, 101)),
        seeds=tuple(range(10, 14)),
        base_seeds=tuple(range(10, 18)),
        contrasts=[
            (CONTROL, 'Adam'),
            ('Muon', 'Adam'),
            ('SOAP', 'Adam'),
            ('SOAP', CONTROL),
        ],
        margin='5%',
        measure=['test loss', 'test bleu'],
        departures={
            'Muon': 'Embeddings, norms and biases are trained by NAdam, not AdamW.',
            'SOAP': 'Eigenbases are computed every 10 steps; no other was tried.',
        },
    )
