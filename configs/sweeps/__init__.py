"""Sweeps: one file per question. `get_config()` returns it with its arms and seeds.

    python -m experiments.sweep --config=configs/sweeps/g2p_small.py --workers=2

`--dry_run` lists the runs.
"""
