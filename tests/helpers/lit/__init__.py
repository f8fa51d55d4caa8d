"""An extension with LightningModules, as tests install it: see `installed` in lightning_runs.py."""
