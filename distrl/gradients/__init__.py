"""Gradient workers: the shares of a batch, and which worker computes which, for which policy."""
