"""What losses are made of: returns, means, weights."""
