"""Ports that only their user reaches, and the encrypted tunnels between hosts."""
