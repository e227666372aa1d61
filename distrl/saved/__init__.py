"""What a saved policy is described by."""
