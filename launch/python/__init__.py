"""distrl from Python: what `distrl.train`, `distrl.evaluate` and `distrl.load_run` do."""
