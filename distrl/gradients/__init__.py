"""Gradient workers: the shares of a batch, who computes them, and for which policy."""
