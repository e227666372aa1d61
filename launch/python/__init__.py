"""Training from Python: what `distrl.train` does, and the process that it trains in."""
