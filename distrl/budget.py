"""Budgets of what actors do, shared out to the actors so that they are kept exactly.

An actor steps only within its lease. Leases are a part of what is left, so they become shorter
towards the end, down to one step of a pool: an actor seldom asks, and none waits long for another.
"""

import threading
from typing import NamedTuple

from distrl.goal import Goal

_SHARE = 2  # a lease is at most this fraction of an even share of what is left


class Lease(NamedTuple):
    """The limits up to which an actor may step; None: there is no such budget.

    Attributes:
      env_steps: environment steps in all lives of the actor in this program.
      episodes: episodes in this life of the actor.
      over: whether the actor is to end; if not, it asks again once the limits allow no step.
    """

    env_steps: int | None
    episodes: int | None
    over: bool


class Budget:
    """A budget of one count, over all actors.

    The sum of the limits is less than `total` plus one step of a pool, so the budget is exceeded by
    less than one such step, in the step that spends it.
    """

    def __init__(self, total: int, num_actors: int, before: int = 0, fixed: bool = False):
        """Args:
        total: the budget.
        num_actors: actors that share it.
        before: how much of it was spent before.
        fixed: each actor gets an equal share at once, whatever the others do; it then exceeds
          its share by less than one step of its pool.
        """
        self._left = total - before
        self._num_actors = num_actors
        self._fixed = fixed
        self._done: dict[str, int] = {}
        self._limits: dict[str, int] = {}

    def lease(self, actor: str, index: int, done: int, step: int, wanted: int) -> int:
        """Returns the count up to which an actor may go. Repeating a call is harmless.

        Args:
          actor: the actor's name.
          index: its index.
          done: what it has done so far. The unused rest of its last lease is free again.
          step: the most that one step of its pool can add.
          wanted: the lease's length, unless less is left.
        """
        if self._fixed:
            share = self._left // self._num_actors + (index < self._left % self._num_actors)
            self._done[actor] = done
            self._limits[actor] = max(done, share + step - 1) if share > done else done
            return self._limits[actor]
        limit = self._limits.get(actor, 0)
        if done < self._done.get(actor, 0) or done + step <= limit:
            return limit
        self.settle(actor, done)
        free = self._left - sum(self._limits.values())
        if free > 0:
            most = min(wanted, free // (_SHARE * self._num_actors))
            self._limits[actor] = done + max(step, most)
        return self._limits[actor]

    def settle(self, actor: str, done: int) -> None:
        """Takes back the rest of an actor's lease. Args: done: what it has done so far."""
        self._done[actor] = self._limits[actor] = max(done, self.done(actor))

    def done(self, actor: str) -> int:
        """Returns what an actor has done, as far as is known."""
        return self._done.get(actor, 0)

    @property
    def spent(self) -> bool:
        """Whether all of it is done, as far as is known."""
        return sum(self._done.values()) >= self._left


class ActingBudget:
    """The budgets of environment steps and of episodes of a task. Thread safe.

    Acting is over when a budget is spent and every actor that had a lease has delivered what it
    made. With `fixed` shares, for lockstep, it is over as soon as one actor has spent its share:
    rounds need all of them.
    """

    def __init__(
        self,
        goal: Goal,
        num_actors: int,
        *,
        env_steps: int = 0,
        episodes: int = 0,
        fixed: bool = False,
    ):
        """Args:
        goal: the goal with the budgets.
        num_actors: number of actors.
        env_steps: environment steps taken before, by the program that this one resumes.
        episodes: episodes ended before.
        fixed: see `Budget`.
        """
        counted = zip(goal.acting_budget, (env_steps, episodes))
        self._budgets = [
            None if total is None else Budget(total, num_actors, before, fixed)
            for total, before in counted
        ]
        self._fixed = fixed
        self._lock = threading.Lock()
        self._lives: dict[str, int] = {}
        self._episodes_before: dict[str, int] = {}  # episodes of an actor's earlier lives
        self._finished: dict[str, int] = {}  # rounds of lockstep, by actor

    def lease(
        self,
        actor: str,
        life: int,
        env_steps: int,
        episodes: int,
        step: int,
        wanted: int,
        reported: int = 0,
    ) -> Lease:
        """Returns an actor's new limits. Repeating a call is harmless.

        Args:
          actor: its name, e.g. "actor/0".
          life: its life.
          env_steps: steps in all its lives in this program.
          episodes: episodes of this life.
          step: the most steps, and so episodes, that one step of its pool can add.
          wanted: steps until it asks again, if enough are left.
          reported: episodes that it has reported; at a life's first call, those of earlier lives.
        """
        index = int(actor.rpartition("/")[2])
        with self._lock:
            done = self._done(actor, life, env_steps, episodes, reported)
            limits = [
                None if budget is None else budget.lease(actor, index, count, step, wanted)
                for budget, count in zip(self._budgets, done)
            ]
            usable = all(
                limit is None or count + step <= limit for limit, count in zip(limits, done)
            )
            if not usable:  # no actor waits for one budget while it holds a part of the other
                self._settle(actor, done)
            over = not usable and (self._fixed or self._spent)
        if limits[1] is not None:
            limits[1] -= self._episodes_before[actor]
        return Lease(limits[0], limits[1], over)

    def lose(self, actor: str, env_steps: int) -> None:
        """Takes back the lease of an actor that has ended for good, after `env_steps` steps."""
        with self._lock:
            self._settle(actor, (env_steps, 0))
            self._lives.pop(actor, None)

    def acted(self, actor: str) -> int:
        """Returns the environment steps that an actor has reported; 0 without a budget of them."""
        budget = self._budgets[0]
        with self._lock:
            return 0 if budget is None else budget.done(actor)

    def finish(self, actor: str, rounds: int = 0) -> None:
        """Records that an actor has stopped acting, and that what it made is in the table.

        Args:
          actor: its name.
          rounds: in lockstep, the rounds that it has completed.
        """
        with self._lock:
            self._finished[actor] = rounds

    @property
    def unfinished(self) -> list[str]:
        """The actors that have had a lease and are not finished."""
        with self._lock:
            return [actor for actor in self._lives if actor not in self._finished]

    @property
    def over(self) -> bool:
        """Whether acting is over."""
        with self._lock:
            if self._fixed:
                return bool(self._finished)
            return self._spent and self._lives.keys() <= self._finished.keys()

    @property
    def rounds(self) -> int:
        """In lockstep, the rounds that all actors complete, as far as is known; 0: none."""
        with self._lock:
            return min(self._finished.values(), default=0)

    @property
    def _spent(self) -> bool:
        return any(budget is not None and budget.spent for budget in self._budgets)

    def _done(
        self, actor: str, life: int, env_steps: int, episodes: int, reported: int
    ) -> tuple[int, int]:
        if self._lives.get(actor) != life:
            self._lives[actor] = life
            self._finished.pop(actor, None)
            episodes_budget = self._budgets[1]
            known = 0 if episodes_budget is None else episodes_budget.done(actor)
            self._episodes_before[actor] = max(reported, known)
        return env_steps, self._episodes_before[actor] + episodes

    def _settle(self, actor: str, done: tuple[int, int]) -> None:
        for budget, count in zip(self._budgets, done):
            if budget is not None:
                budget.settle(actor, count)
