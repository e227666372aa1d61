"""How parameters reach actors: the learner's service, its clients, and relays between hosts."""
