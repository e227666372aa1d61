"""What the tests share: commands and waits, experiments, virtual clusters."""
