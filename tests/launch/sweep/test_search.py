"""Which settings a sweep tries."""

import math

import pytest

from distrl.errors import ConfigError
from distrl.launch.sweep.search import Range, Search, make_search, split_values

LR, COST = "config.agent.learning_rate", "config.agent.entropy_cost"


def test_a_grid_is_all_combinations():
    search = make_search([f"{LR}=1e-3,3e-4", "agent=ppo,a2c"], [], None, 0)
    assert search.settings() == [
        {LR: "1e-3", "agent": "ppo"},
        {LR: "1e-3", "agent": "a2c"},
        {LR: "3e-4", "agent": "ppo"},
        {LR: "3e-4", "agent": "a2c"},
    ]
    assert make_search([], [], None, 0).settings() == [{}]


def test_commas_in_brackets_and_quotes_do_not_split():
    assert split_values("(64,64),[128,(1,2)], 'a,b' ,c") == ["(64,64)", "[128,(1,2)]", "'a,b'", "c"]


def test_each_draw_is_tried_with_all_of_the_grid():
    search = make_search([f"{LR}=1,2"], [f"{COST}=log:1e-4:1e-2"], 3, 0)
    settings = search.settings()
    assert [each[LR] for each in settings] == ["1", "2"] * 3
    costs = [each[COST] for each in settings]
    assert costs[0::2] == costs[1::2]
    assert len(set(costs)) == 3


def test_more_draws_and_more_ranges_leave_those_before_as_they_were():
    few = make_search([], [f"{COST}=log:1e-4:1e-2"], 3, 5).settings()
    more = make_search([], ["x=uniform:0:1", f"{COST}=log:1e-4:1e-2"], 7, 5).settings()
    assert [each[COST] for each in more][:3] == [each[COST] for each in few]
    other = make_search([], [f"{COST}=log:1e-4:1e-2"], 3, 6).settings()
    assert other != few


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [("uniform", -2, 3), ("log", 1.23456789e-5, 1.23457e-5), ("int", 1, 3), ("logint", 1, 64)],
)
def test_draws_lie_in_their_range(kind, low, high):
    words = [each["x"] for each in Search({}, {"x": Range(kind, low, high)}, 400).settings()]
    numbers = [float(word) for word in words]
    assert min(numbers) >= low and max(numbers) <= high
    if kind == "int":
        assert sorted(words) == ["1", "2", "3"]  # equal settings are one trial
    if kind == "logint":
        assert {"1", "64"} <= set(words) and all(word.isdecimal() for word in words)


def test_logarithms_are_uniform():
    search = Search({}, {"x": Range("log", 1e-4, 1e-2)}, 4000)
    logs = [math.log10(float(word)) for word in search._draws("x", Range("log", 1e-4, 1e-2))]
    below = sum(each < -3 for each in logs) / len(logs)
    assert abs(below - 0.5) < 4 * math.sqrt(0.25 / 4000)


def test_values_that_are_equal_are_tried_once():
    search = make_search(["x=1e-3,0.001,1,1.0,true,'a',\"a\",(1, 2),(1,2),a b"], [], None, 0)
    assert [each["x"] for each in search.settings()] == [
        "1e-3",
        "1",
        "true",
        "'a'",
        "(1, 2)",
        "a b",
    ]


def test_values_to_choose_from():
    search = make_search([], ["agent=ppo,dqn", "env=gym:my:Env-v0,b"], 40, 0)
    settings = search.settings()
    assert {each["agent"] for each in settings} == {"ppo", "dqn"}
    assert {each["env"] for each in settings} == {"gym:my:Env-v0", "b"}
    assert len(settings) == 4


@pytest.mark.parametrize(
    ("grid", "random", "trials", "message"),
    [
        (["x"], [], None, "--grid x: write --grid NAME=..."),
        (["x=1", "x=2"], [], None, "--grid x: named twice"),
        (["x=1"], ["x=1,2"], 3, "--random x: --grid names it too"),
        ([], ["x=1,2"], None, "--random: say how many draws to try, as in --trials=10"),
        ([], [], 3, "--trials is the number of draws of --random, and no --random is given"),
        ([], ["x=1,2"], 0, "--trials must be 1 or more, got 0"),
        ([], ["x=logg:1:2"], 1, "no distribution 'logg'; did you mean log?"),
        ([], ["x=log:0:2"], 1, "the logarithm needs bounds above 0"),
        ([], ["x=uniform:2:2"], 1, "the first bound must be less than the second"),
        ([], ["x=uniform:0:inf"], 1, "the first bound must be less than the second"),
        ([], ["x=int:0.5:2"], 1, "the bounds must be whole numbers"),
    ],
)
def test_what_cannot_be_read_is_refused(grid, random, trials, message):
    with pytest.raises(ConfigError) as caught:
        make_search(grid, random, trials, 0)
    assert message in str(caught.value)
