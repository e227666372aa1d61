"""The rules that all tables follow: order, sampling, rate limits, files."""
