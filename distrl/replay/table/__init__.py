"""What all kinds of tables share: order, sampling, rate limits, files."""
