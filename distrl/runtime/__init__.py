"""What processes need: heartbeats, lives, files, messages, and the host's cores and memory."""
