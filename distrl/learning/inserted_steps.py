"""How many environment steps a table has received, from its count of unrolls."""


class InsertedSteps:
    """Counts the environment steps in the unrolls that a table has received.

    The table counts unrolls, whose rows from an episode's end to the next one's start are no steps.
    Their share is that of the unrolls learned from so far: exact for a queue, an estimate for a
    table that is sampled from.
    """

    def __init__(self) -> None:
        self.restart(0)

    def restart(self, total: int) -> None:
        """Goes on from a total."""
        self._before = self.total = total
        self._inserted = self._learned = self._real = 0

    def add(self, inserted: int, learned: int, real: int) -> None:
        """Adds an update's numbers.

        Args:
          inserted: rows that the table has received since the last update.
          learned: rows that the update learns from.
          real: those of them that are environment steps.
        """
        self._inserted += inserted
        self._learned += learned
        self._real += real
        total = self._before + round(self._inserted * self._real / max(1, self._learned))
        self.total = max(self.total, total)
