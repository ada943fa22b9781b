"""Configs: one file per run. `get_config()` returns an `ml_collections.ConfigDict`.

python -m experiments.run --config=configs/wmt_small.py
"""
