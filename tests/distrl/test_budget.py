"""Budgets shared out to actors are kept to less than one step of a pool, whatever the actors do."""

import random

import pytest

from distrl.budget import ActingBudget, Budget
from distrl.goal import Goal


class SimulatedActor:
    """Steps a pool of `step` environments, some of which end an episode or are reset."""

    def __init__(self, budget: ActingBudget, index: int, step: int, speed: float, rng):
        self.name, self.step, self.speed = f"actor/{index}", step, speed
        self._budget, self._rng = budget, rng
        self.life, self.acted, self.episodes, self.ended = 0, 0, 0, 0
        self.lease = (0, 0, False)

    @property
    def over(self) -> bool:
        return self.lease[2]

    def may_step(self) -> bool:
        counts = (self.acted, self.episodes)
        return all(
            limit is None or count + self.step <= limit for limit, count in zip(self.lease, counts)
        )

    def run_once(self) -> None:
        if not self.may_step():
            for _ in range(self._rng.choice([1, 1, 2])):  # a call may arrive twice
                self.lease = self._budget.lease(
                    self.name,
                    self.life,
                    self.acted,
                    self.episodes,
                    self.step,
                    wanted=40 * self.step,
                    reported=self.ended,
                )
        if self.may_step():
            self.acted += self._rng.randint(0, self.step)
            ended = self._rng.randint(0, self.step) if self._rng.random() < 0.2 else 0
            self.episodes, self.ended = self.episodes + ended, self.ended + ended
        elif self.over:
            self._budget.finish(self.name)

    def die(self) -> None:
        """Restarts, with what was left of its lease."""
        self.life, self.episodes, self.lease = self.life + 1, 0, (0, 0, False)


def play(goal: Goal, seed: int, before: tuple[int, int] = (0, 0)) -> list[SimulatedActor]:
    rng = random.Random(seed)
    count, step = rng.randint(1, 5), rng.choice([1, 8, 32])
    budget = ActingBudget(goal, count, env_steps=before[0], episodes=before[1])
    actors = [SimulatedActor(budget, i, step, rng.random() + 0.1, rng) for i in range(count)]
    for turn in range(50_000):
        actor = rng.choices(actors, [each.speed for each in actors])[0]
        if rng.random() < 0.001:
            actor.die()
        actor.run_once()
        if turn % 16 == 0 and budget.over:
            return actors
    raise AssertionError("the budget was never spent")


@pytest.mark.parametrize("seed", range(6))
def test_env_steps_over_all_actors_exceed_the_budget_by_less_than_one_step_of_a_pool(seed):
    actors = play(Goal(max_env_steps=3_000), seed, before=(1_000, 0))
    assert 2_000 <= sum(actor.acted for actor in actors) < 2_000 + actors[0].step


@pytest.mark.parametrize("seed", range(6))
def test_so_do_episodes(seed):
    actors = play(Goal(max_episodes=400), seed, before=(0, 100))
    assert 300 <= sum(actor.ended for actor in actors) < 300 + actors[0].step


@pytest.mark.parametrize("seed", range(6))
def test_the_first_of_two_budgets_ends_acting_and_nobody_waits_for_ever(seed):
    actors = play(Goal(max_env_steps=4_000, max_episodes=500), seed)
    steps = sum(actor.acted for actor in actors)
    episodes = sum(actor.ended for actor in actors)
    step = actors[0].step
    assert steps < 4_000 + step and episodes < 500 + step
    assert steps >= 4_000 or episodes >= 500


def test_the_rest_of_an_actor_that_has_gone_is_for_the_others():
    budget = ActingBudget(Goal(max_env_steps=1000), 2)
    assert budget.lease("actor/0", 0, 0, 0, 10, 10**6) == (250, None, False)
    assert budget.lease("actor/1", 0, 0, 0, 10, 10**6) == (187, None, False)
    budget.lose("actor/0", 30)
    assert budget.unfinished == ["actor/1"]
    acted, asked = 180, 0
    while not (lease := budget.lease("actor/1", 0, acted, 0, 10, 10**6)).over:
        acted, asked = lease.env_steps, asked + 1
    assert 970 <= acted < 980
    assert not budget.over
    budget.finish("actor/1")
    assert budget.over


def test_equal_shares_depend_on_nothing_but_the_index():
    budget = ActingBudget(Goal(max_env_steps=103), 4, env_steps=1, fixed=True)
    leases = [budget.lease(f"actor/{i}", 0, 0, 0, 8, 10**6) for i in (3, 0, 1, 2)]
    assert [lease.env_steps for lease in leases] == [25 + 7, 26 + 7, 26 + 7, 25 + 7]
    assert not budget.lease("actor/3", 0, 24, 0, 8, 10**6).over
    assert budget.lease("actor/3", 0, 25, 0, 8, 10**6).over
    assert not budget.over
    budget.finish("actor/3", rounds=6)
    budget.finish("actor/0", rounds=5)
    assert budget.over and budget.rounds == 5


def test_leases_become_shorter_and_stay_few():
    budget, done, asked = Budget(10**9, 4), [0] * 4, 0
    while not budget.spent:
        for actor in range(4):
            limit = budget.lease(f"actor/{actor}", actor, done[actor], 32, 2**40)
            done[actor], asked = limit, asked + 1
    assert 10**9 <= sum(done) < 10**9 + 32
    assert asked < 1000
