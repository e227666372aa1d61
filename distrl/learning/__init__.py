"""Parts of a learner: its loop, its checks, its state."""
