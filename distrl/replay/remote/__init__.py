"""What clients of Reverb servers and of our own servers share: shards and sampling ahead."""
