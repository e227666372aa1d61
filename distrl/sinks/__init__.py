"""Where a run's metrics go: files, TensorBoard, Weights & Biases."""
