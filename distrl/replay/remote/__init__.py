"""What clients of servers have in common, Reverb's and our own: shards and sampling ahead."""
