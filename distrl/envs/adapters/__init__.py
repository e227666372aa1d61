"""One environment of any library, as pools step it."""
