"""A user's file that pages name."""

from distrl import presets

experiment = presets.experiment("CartPole-v1")
