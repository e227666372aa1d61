"""The example of a hierarchy: its control flow, and that it trains."""

import importlib.util

import numpy as np
import pytest

from distrl.envs import Act, End
from distrl.programs.single_process_parts import SingleProcess
from tests.support.commands import ROOT


def load():
    spec = importlib.util.spec_from_file_location("hierarchy", ROOT / "examples" / "hierarchy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def greedy(example, observation):
    """Returns the worker's way to its goal, by its observation."""
    cells = example.SIZE * example.SIZE
    cell = divmod(int(observation[:cells].argmax()), example.SIZE)
    far = example.DISTANCES[int(observation[cells + 1 :].argmax())]
    steps = [far.get((cell[0] + r, cell[1] + c), 99) for r, c in example.MOVES]
    return int(np.argmin(steps))


def test_the_manager_is_paid_for_the_treasure_and_the_worker_for_its_walks():
    example = load()
    episode = example.Hierarchy(0).run_one_episode()
    rewards = {"manager": 0.0, "worker": 0.0}
    walks, request, has_key = [], next(episode), False
    try:
        while True:
            rewards[request.agent] += request.reward
            answer = None
            if isinstance(request, End):
                walks.append((request.agent, request.truncated))
            elif request.agent == "manager":
                has_key = bool(request.observation[-1])
                answer = example.CENTRES.index(example.TREASURE if has_key else example.KEY)
            else:
                assert isinstance(request, Act)
                answer = greedy(example, request.observation)
            request = episode.send(answer)
    except StopIteration:
        pass
    assert has_key
    assert rewards["manager"] == 1.0
    assert walks[-2:] == [("worker", False), ("manager", False)]
    # Two goals reached, and progress paid for once, there and back.
    there = example.DISTANCES[1][example.START] + example.DISTANCES[2][example.KEY]
    reached = [end for end in walks if end == ("worker", False)]
    assert len(reached) == 2
    assert rewards["worker"] <= 2 + example.PROGRESS * there + 1e-6


def test_a_goal_that_is_reached_already_costs_a_step():
    example = load()
    episode = example.Hierarchy(0).run_one_episode()
    request, asked = next(episode), 0
    while isinstance(request, Act):  # stay where it is, until the time is up
        assert request.agent == "manager"
        asked += 1
        request = episode.send(example.CENTRES.index(example.START))
    assert asked == example.TIME_LIMIT
    assert (request.agent, request.reward, request.truncated) == ("manager", 0.0, True)


@pytest.mark.full
def test_both_levels_learn_on_their_clocks():
    example = load()
    with SingleProcess(example.experiment(), printer=lambda line: None) as parts:
        while not all(part.learner.version for part in parts.tasks.values()):
            assert parts.run_once()
        versions = {name: part.learner.version for name, part in parts.tasks.items()}
    assert versions["worker"] >= versions["manager"] == 1
