"""Who copies whom, and with which hyperparameters: exactly, and again with the same seed."""

import json
import math

import numpy as np
import pytest

from distrl import envs
from distrl.agents.a2c import A2CConfig
from distrl.agents.dqn import DQNConfig
from distrl.agents.tunable import Tunable
from distrl.config import ActorsConfig
from distrl.errors import ConfigError, Diverged
from distrl.experiment import Experiment, LearnedPolicy, LearnerConfig
from distrl.goal import Goal
from distrl.learning.divergence import MAX_SKIPPED
from distrl.population import Evolution, MemberStanding, Population, drop_lost
from distrl.transforms import RewardScale

RANGES = {"rate": (0.01, 1.0)}
RETURNS = {"a": 5.0, "b": 1.0, "c": 9.0, "d": 7.0, "e": 3.0, "f": 8.0, "g": 2.0, "h": 6.0}


class Fake:
    """A member whose state is its name."""

    def __init__(self, name, mean_return, episodes=20):
        self.name, self.state, self.values = name, name, {"rate": 0.1}
        self.version, self.episodes, self.mean_return = 0, episodes, mean_return
        self.skipped = 0

    def skipped_in_row(self):
        return self.skipped

    def standing(self):
        return MemberStanding(self.version, self.episodes, self.mean_return)

    def copy(self):
        return self.state, dict(self.values)

    def adopt(self, state, values):
        self.state, self.values = state, dict(values)

    def forget_episodes(self):
        self.episodes, self.mean_return = 0, None


def evolve(population, returns=RETURNS, turns=1, seed=3, record=None):
    """Lets all members reach their turns; returns them, and the lines."""
    members = {name: Fake(name, value) for name, value in returns.items()}
    lines = []
    evolution = Evolution(population, RANGES, members, seed, record, lines.append)
    for _ in range(turns):
        evolution.run_once()  # nobody's turn
        for member in members.values():
            member.version += population.interval
        evolution.run_once()
        evolution.run_once()
    return members, lines


def test_the_worst_copy_the_best_and_nobody_else():
    members, lines = evolve(Population(interval=10, share=0.25, resample=0.0))
    copied = {name: member.state for name, member in members.items() if member.state != name}
    assert set(copied) == {"b", "g"} and set(copied.values()) <= {"c", "f"}
    assert members["b"].values["rate"] in (0.1 * 0.8, 0.1 * 1.25)
    assert len(lines) == 2
    assert lines[0].startswith(f"population: b (return 1.0, learner step 10) copies {copied['b']}")
    assert "rate 0.1 -> 0." in lines[0]


def test_a_copy_counts_as_good_as_the_other_until_it_has_episodes():
    members = {name: Fake(name, value) for name, value in RETURNS.items()}
    evolution = Evolution(Population(interval=10), RANGES, members, 0, None, lambda line: None)
    evolution.run_once()
    members["b"].version = 10
    evolution.run_once()
    copied = members["b"].state
    assert copied in ("c", "f")
    members["b"].episodes, members["b"].mean_return = 3, 0.5  # too few to count
    members["b"].version, members["b"].state = 20, "b"
    evolution.run_once()
    assert members["b"].state == "b"
    members["b"].episodes, members["b"].version = 10, 30
    evolution.run_once()
    assert members["b"].state in ("c", "f")


def test_a_member_that_has_diverged_copies_whatever_its_returns_were(tmp_path):
    members = {name: Fake(name, value) for name, value in RETURNS.items()}
    members["new"] = Fake("new", None, episodes=0)
    for name in ("c", "d", "new"):  # c is the best
        members[name].skipped = MAX_SKIPPED
    members["f"].skipped = MAX_SKIPPED - 1
    lines, record = [], tmp_path / "record"
    population = Population(interval=10, share=0.25)
    evolution = Evolution(population, RANGES, members, 0, record, lines.append)
    evolution.run_once()
    for name in ("a", "c", "new"):
        members[name].version = 10
    evolution.run_once()
    assert members["c"].state == members["new"].state == "f"  # the best of those that are left
    assert members["d"].state == "d"  # not its turn yet
    assert members["a"].state == "a"
    assert [line.partition(" copies f ")[0] for line in lines] == [
        "population: c (diverged, learner step 10)",
        "population: new (diverged, learner step 10)",
    ]
    noted = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(note["return"], note["diverged"]) for note in noted] == [(9.0, True), (None, True)]


def test_a_member_that_has_diverged_waits_for_a_score_of_another():
    members = {"a": Fake("a", 5.0), "b": Fake("b", None, episodes=0)}
    members["a"].skipped = MAX_SKIPPED
    evolution = Evolution(Population(interval=10), RANGES, members, 0, None, lambda line: None)
    evolution.run_once()
    members["a"].version = 10
    evolution.run_once()
    assert members["a"].state == "a"
    members["b"].mean_return, members["b"].episodes, members["a"].version = 1.0, 10, 20
    evolution.run_once()
    assert members["a"].state == "b"


def test_a_population_that_has_diverged_ends():
    members = {name: Fake(name, value) for name, value in RETURNS.items()}
    evolution = Evolution(Population(interval=10), RANGES, members, 0, None, lambda line: None)
    evolution.run_once()
    for member in members.values():
        member.skipped = MAX_SKIPPED
    evolution.run_once()  # nobody's turn
    members["a"].version = 10
    with pytest.raises(Diverged, match="every member of the population has skipped 100 updates"):
        evolution.run_once()


def test_it_follows_from_the_seed(tmp_path):
    population = Population(interval=10, share=0.5, resample=0.5)
    runs = [evolve(population, turns=3, seed=seed)[1] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    members, lines = evolve(population, turns=3, seed=1, record=tmp_path / "record")
    records = [json.loads(line) for line in (tmp_path / "record").read_text().splitlines()]
    assert len(records) == len(lines) > 5
    last = {record["member"]: record for record in records}
    for name, record in last.items():
        assert members[name].values == record["to"]
        assert record["its_return"] > record["return"]


def test_a_resumed_member_has_had_its_turn():
    members = {name: Fake(name, value) for name, value in RETURNS.items()}
    for member in members.values():
        member.version = 37
    evolution = Evolution(Population(interval=10), RANGES, members, 0, None, lambda line: None)
    evolution.run_once()
    assert all(member.state == name for name, member in members.items())
    members["b"].version = 40
    evolution.run_once()
    assert members["b"].state != "b" and members["g"].state == "g"


def test_a_member_whose_learner_was_restarted_is_compared_again(tmp_path):
    """At its next turn, though it has had that one before; by returns of the policy that it has."""
    record, lines = tmp_path / "record", []
    members = {name: Fake(name, value) for name, value in RETURNS.items()}
    member = members["b"]
    evolution = Evolution(Population(interval=10), RANGES, members, 0, record, lines.append)
    evolution.run_once()
    for version in (15, 25, 95):
        member.version = version
        evolution.run_once()
    assert member.state in ("c", "f")
    lines.clear()
    member.version, member.state, member.mean_return, member.episodes = 7, "b", 9.5, 20
    evolution.run_once()  # 9.5 is the return of what it has lost
    assert (member.episodes, member.mean_return, member.state) == (0, None, "b")
    assert lines == [
        "population: the learner of b was restarted: it went back from learner step 95 to 7, and "
        "lost the copies that it made in between"
    ]
    noted = {"member": "b", "learner_step": 7, "restarted_after": 95}
    assert json.loads(record.read_text().splitlines()[-1]) == noted
    member.version = 13
    evolution.run_once()
    assert member.state == "b" and len(lines) == 1  # it has no episodes yet
    member.version, member.mean_return, member.episodes = 21, 1.0, 20
    evolution.run_once()
    assert member.state in ("c", "f")
    assert json.loads(record.read_text().splitlines()[-1])["learner_step"] == 21


def test_a_resumed_run_drops_what_it_has_lost_from_the_record(tmp_path):
    record = tmp_path / "record"
    drop_lost(record, {"a": 0})
    assert not record.exists()
    noted = [("a", 10), ("b", 10), ("a", 20), ("b", 20), ("b", 30)]
    lines = [json.dumps({"member": name, "learner_step": step}) + "\n" for name, step in noted]
    record.write_text("".join(lines) + lines[0][:9])
    drop_lost(record, {"a": 10, "b": 20})
    assert record.read_text() == "".join([lines[0], lines[1], lines[3]])
    drop_lost(record, {"a": 0, "b": 0})
    assert record.read_text() == ""


def test_members_without_episodes_are_not_compared():
    population = Population(interval=10, episodes=21)
    members, lines = evolve(population)
    assert lines == [] and all(member.state == name for name, member in members.items())
    members, lines = evolve(Population(interval=10), {"a": None, "b": 2.0})
    assert lines == []
    members, lines = evolve(Population(interval=10), {"a": 2.0, "b": 2.0})
    assert lines == []  # as good


def test_changed_values_by_hand():
    rng = np.random.default_rng(0)
    population = Population(factors=(0.5, 2.0), resample=0.0)
    drawn = [population.explore(rng, {"rate": 0.3}, RANGES)["rate"] for _ in range(200)]
    assert set(drawn) == {0.15, 0.6}
    drawn = [population.explore(rng, {"rate": 0.9}, RANGES)["rate"] for _ in range(200)]
    assert set(drawn) == {0.45, 1.0}  # kept in its range
    fresh = Population(resample=1.0)
    logs = np.log([fresh.explore(rng, {"rate": 0.9}, RANGES)["rate"] for _ in range(4000)])
    assert math.log(0.01) <= logs.min() and logs.max() <= 0
    np.testing.assert_allclose(logs.mean(), math.log(0.1), atol=0.1)


GOAL = Goal()


def experiment(agents, goal=GOAL, learning=True, transforms=(), **settings):
    def policy(agent, own):
        learner = LearnerConfig(batch_size=8, learning=learning)
        return LearnedPolicy(agent, learner=learner, transforms=own)

    if transforms or not learning:
        agents = [policy(agent, transforms[:k]) for k, agent in enumerate(agents)]
    return Experiment(
        envs.Copies(envs.make("CartPole-v1"), len(agents)),
        policies={f"m{k}": agent for k, agent in enumerate(agents)},
        policy_of={str(k): f"m{k}" for k in range(len(agents))},
        actors=ActorsConfig(num_envs=2),
        population=Population(**settings),
        goal=goal,
    )


TUNABLE = Tunable(A2CConfig(), {"learning_rate": (1e-4, 1e-2)})
OTHER = Tunable(A2CConfig(discount=0.5), {"learning_rate": (1e-4, 1e-2)})


def with_a_student():
    agent = Tunable(DQNConfig(), {"learning_rate": (1e-4, 1e-2)})
    return Experiment(
        envs.Copies(envs.make("CartPole-v1"), 2),
        policies={"a": agent, "b": agent, "c": LearnedPolicy(agent, learns_from="a")},
        policy_of={"0": "a", "1": "b"},
        population=Population(),
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: experiment([TUNABLE]), "needs at least two learned policies"),
        (lambda: experiment([TUNABLE, A2CConfig()]), r"give it Tunable\(A2CConfig"),
        (lambda: experiment([TUNABLE, OTHER]), "'m0' and 'm1' differ, and could not copy"),
        (
            lambda: experiment([TUNABLE] * 2, goal=Goal(window=9), episodes=10),
            r"population.episodes=10: .* goal.window=9 episodes; take as many or fewer",
        ),
        (
            lambda: experiment([TUNABLE] * 2, learning=False),
            "does not learn .learner.learning=False",
        ),
        (
            lambda: experiment([TUNABLE] * 2, transforms=(RewardScale(0.1),)),
            "transforms, observations or actions of policies 'm0' and 'm1' differ",
        ),
        (lambda: experiment([TUNABLE] * 2, interval=0), "population.interval must be a whole"),
        (lambda: experiment([TUNABLE] * 2, share=0.7), "population.share must be above 0, 0.5"),
        (lambda: experiment([TUNABLE] * 2, factors=()), "population.factors: expected numbers"),
        (lambda: experiment([TUNABLE] * 2, resample=2), "population.resample must lie in"),
        (with_a_student, "policy 'c' learns from 'a', whose returns say nothing about it"),
    ],
)
def test_what_cannot_work_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
