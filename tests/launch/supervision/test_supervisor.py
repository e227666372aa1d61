"""The supervisor's decisions, with nodes and a clock that only exist in the test."""

import heapq
import itertools
import os
import signal
import time
import types

import pytest

from distrl.launch.supervision.node import Message, SupervisedNode
from distrl.launch.supervision.restart_policy import HangLimits, RestartPolicy
from distrl.launch.supervision.result import NodeExit
from distrl.launch.supervision.supervisor import Supervisor
from distrl.launch.supervision.usage import Usage
from distrl.runtime.heartbeat import ABSENT, DOWN, GONE, LOST, UP, HeartbeatTable

PHASES = [["actor/0", "actor/1"], ["learner/0"], ["replay/0"]]
NAMES = [name for phase in PHASES for name in phase]
POLICY = RestartPolicy(restarts=5, backoff=1.0, max_backoff=4.0, stable_after=10.0)
NEVER = RestartPolicy()
TRACEBACK = 'Traceback:\n  File "environment.py", line 3, in step\nKeyError: 3\n'


class FakeNode(SupervisedNode):
    """A node that does what the test says, at the times that it says.

    Attributes:
      stops_in: seconds from being asked to stop to its end; None: it never stops.
      killable: whether a kill ends it.
      events: "start", "stop", "stacks" and "kill", with the time of each.
      woken: when it was let run again.
      on_start: called at each start.
    """

    def __init__(self, world, name, policy):
        log = types.SimpleNamespace(path=f"{name}.log", broken=None)
        heartbeat = world.heartbeats.of(name)
        super().__init__(name, name.partition("/")[0], log, heartbeat, policy)
        self._world = world
        self._pending = None
        self.stops_in = 0.0
        self.killable = True
        self.events = []
        self.woken = []
        self.on_start = lambda: None
        self.cores = 0.0
        self.is_stopped = False

    def times(self, kind):
        return [at for event, at in self.events if event == kind]

    def _record(self, kind):
        self.events.append((kind, round(self._world.now, 3)))

    # What the test has the node do.

    def end(self, state="failed", **fields):
        """Ends its process, which wakes the supervisor; `fields` are those of a NodeExit."""
        self._pending = {"state": state, **fields}
        self._world.after(0.0, lambda: None)

    def say(self, kind, reason="", age=0.0, **fields):
        message = Message(self._world.now - age, self.name, kind, reason, **fields)
        self._world.supervisor.messages.append(message)

    def fail(self, reason="KeyError: 3", traceback=TRACEBACK, **fields):
        """Sends an exception and ends with it."""
        self.say("failure", reason, traceback=traceback, **fields)
        self.end(code=1)

    # What the supervisor asks of it.

    def start(self):
        self._record("start")
        self.exit = NodeExit(causes=self.history.causes, state="running")
        self.started = self._world.now
        self.alive = True
        self._pending = None
        self.on_start()

    def usage(self):
        return Usage(self.cores * (self._world.now - self.started), self.is_stopped)

    def collect(self):
        if self._pending is None:
            return False
        for name, value in self._pending.items():
            setattr(self.exit, name, value)
        self.exit.seconds = self._world.now - self.started
        self.alive = False
        return True

    def wake(self):
        self.woken.append(self._world.now)

    def ask_to_stop(self):
        self._record("stop")
        if self.stops_in is not None:
            self._world.after(self.stops_in, lambda: self._pending or self.end("ended", code=0))

    def kill(self):
        self._record("kill")
        if self.killable:
            self.end("killed", signal="SIGKILL")

    def show_stacks(self, also_if_stopped=False):
        self._record("stacks")


class World:
    """A program of fake nodes under a real supervisor, and its time, which starts at 0.

    Attributes:
      said, noted: the journal's lines on the terminal, and only in its file.
      refuse_lives: seconds in which no life can be counted.
    """

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.said, self.noted = [], []
        self._events = []
        self._order = itertools.count()
        self._signals = []
        self._lives = dict.fromkeys(NAMES, 0)
        self._fd = os.eventfd(0)
        self.refuse_lives = range(0)
        self.heartbeats = HeartbeatTable(NAMES)
        monkeypatch.setattr(time, "monotonic_ns", lambda: int((1000.0 + self.now) * 1e9))
        self.nodes = {name: FakeNode(self, name, NEVER) for name in NAMES}

    def use(self, **policies):
        """Gives groups a restart policy."""
        for name in NAMES:
            if name.partition("/")[0] in policies:
                self.nodes[name] = FakeNode(self, name, policies[name.partition("/")[0]])

    def at(self, when, action):
        """Has `action` called at a time."""
        heapq.heappush(self._events, (when, next(self._order), action))

    def after(self, seconds, action):
        self.at(self.now + seconds, action)

    def signal(self, number):
        self._signals.append(number)

    def run(self, *, standby=(), grace=None, limits=None, until=5000.0):
        """Runs the program to its end, which must come before the time `until`."""

        def wait(seconds):
            assert seconds >= 0.0
            due = self._events[0][0] if self._events else float("inf")
            self.now = max(self.now, min(self.now + seconds, due))
            assert self.now < until, "the program should have ended"
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()

        def next_life(name):
            if int(self.now) in self.refuse_lives:
                raise OSError(28, "No space left on device")
            self._lives[name] += 1
            return self._lives[name] - 1

        self.supervisor = Supervisor(
            types.SimpleNamespace(fileno=lambda: self._fd, pending=self._pending),
            types.SimpleNamespace(
                say=self.said.append,
                note=self.noted.append,
                waiting=lambda: False,
                flush=lambda: None,
            ),
            limits or HangLimits(),
            next_life,
            stop_grace=grace,
            clock=lambda: self.now,
            wait=wait,
        )
        try:
            self.supervisor.run(list(self.nodes.values()), PHASES, standby)
        finally:
            self.supervisor.close()
        return self.supervisor.outcome

    def _pending(self):
        numbers, self._signals = self._signals, []
        return numbers

    def close(self):
        os.close(self._fd)


@pytest.fixture
def world(monkeypatch):
    world = World(monkeypatch)
    yield world
    world.close()


def finish_at(world, when):
    world.at(when, lambda: world.nodes["learner/0"].say("stop", "goal reached"))


# Restarts.


def test_pauses_before_restarts_double_and_are_reset_by_a_long_life(world):
    world.use(actor=POLICY)
    actor = world.nodes["actor/0"]
    lives = iter([1.0, 1.0, 1.0, 20.0])
    actor.on_start = lambda: world.after(next(lives, 1000.0), lambda: actor.end(signal="SIGKILL"))
    finish_at(world, 100.0)
    assert world.run().status == "finished"
    # Pauses of 1, 2, 4 and, after 20 s, 1 s.
    assert actor.times("start") == [0.0, 2.0, 5.0, 10.0, 31.0]
    assert actor.heartbeat.life == 4
    assert world.said[:4] == [
        "actor/0 was killed by SIGKILL: restarting in 1.0 s (restart 1); see actor/0.log",
        "actor/0 was killed by SIGKILL: restarting in 2.0 s (restart 2); see actor/0.log",
        "actor/0 was killed by SIGKILL: restarting in 4.0 s (restart 3); see actor/0.log",
        "actor/0 was killed by SIGKILL: restarting in 1.0 s (restart 4); see actor/0.log",
    ]
    assert actor.exit.causes == ["was killed by SIGKILL"] * 4
    assert world.nodes["actor/1"].times("start") == [0.0]


def test_callers_see_whether_a_node_will_come_back(world):
    world.use(actor=POLICY)
    actor, seen = world.nodes["actor/0"], []
    world.at(5.0, lambda: actor.end(signal="SIGKILL"))
    for when in (4.0, 5.5, 7.0):
        world.at(when, lambda: seen.append(actor.heartbeat.status))
    finish_at(world, 10.0)
    world.run()
    assert seen == [UP, DOWN, UP]
    assert actor.heartbeat.status == GONE


def test_a_used_up_budget_ends_the_program(world):
    world.use(actor=RestartPolicy(restarts=2, backoff=1.0))
    actor = world.nodes["actor/0"]
    actor.on_start = lambda: world.after(50.0, lambda: actor.end(signal="SIGKILL"))
    outcome = world.run()
    assert actor.times("start") == [0.0, 51.0, 102.0]
    assert (outcome.status, outcome.exit_code) == ("failed", 1)
    assert outcome.reason == "actor/0 was killed by SIGKILL (after 2 restarts, the most allowed)"
    assert outcome.failure.node == "actor/0"


def test_three_lives_with_the_same_traceback_end_the_program(world):
    world.use(actor=POLICY)
    actor = world.nodes["actor/0"]
    actor.on_start = lambda: world.after(50.0, actor.fail)
    outcome = world.run()
    assert actor.times("start") == [0.0, 51.0, 102.0]
    assert outcome.reason == "actor/0: KeyError: 3 (3 times in a row)"
    assert outcome.failure.traceback == TRACEBACK


def test_different_tracebacks_do_not_end_the_program(world):
    world.use(actor=POLICY)
    actor, line = world.nodes["actor/0"], itertools.count(3)
    actor.on_start = lambda: world.after(
        50.0, lambda: actor.fail(traceback=TRACEBACK.replace("3", str(next(line))))
    )
    finish_at(world, 210.0)
    assert world.run().status == "finished"
    assert len(actor.times("start")) == 5


def test_a_node_that_failed_and_does_not_end_is_killed(world):
    world.use(actor=POLICY)
    actor = world.nodes["actor/0"]
    world.at(5.0, lambda: actor.say("failure", "KeyError: 3", traceback=TRACEBACK))
    finish_at(world, 20.0)
    assert world.run().status == "finished"
    (killed,) = actor.times("kill")
    assert 7.0 < killed <= 8.0
    assert world.said[0].startswith("actor/0: KeyError: 3: restarting in 1.0 s (restart 1)")


def test_the_first_of_several_exceptions_of_a_life_is_its_cause(world):
    world.use(actor=POLICY)
    actor = world.nodes["actor/0"]
    world.at(5.0, lambda: actor.say("failure", "KeyError: 3", traceback=TRACEBACK))
    world.at(5.1, lambda: actor.fail("RuntimeError: because of it", TRACEBACK))
    finish_at(world, 20.0)
    world.run()
    assert actor.exit.causes == ["KeyError: 3"]


def test_bad_input_is_not_restarted(world):
    world.use(actor=POLICY)
    actor = world.nodes["actor/0"]
    world.at(5.0, lambda: actor.fail("ConfigError: no", None, bad_input=True))
    outcome = world.run()
    assert (outcome.reason, outcome.exit_code) == ("actor/0: ConfigError: no", 2)
    assert actor.times("start") == [0.0]
    assert world.said == []  # its one line is the result's


def test_training_that_has_diverged_is_not_restarted(world):
    world.use(learner=POLICY)
    learner = world.nodes["learner/0"]
    world.at(5.0, lambda: learner.fail("Diverged: at learner step 2", None, final=True))
    outcome = world.run()
    assert (outcome.reason, outcome.exit_code) == ("learner/0: Diverged: at learner step 2", 1)
    assert learner.times("start") == [0.0] and world.said == []


def test_a_learner_is_not_restarted_after_a_failure_of_a_callback(world):
    world.use(learner=POLICY)
    learner = world.nodes["learner/0"]
    world.at(5.0, lambda: learner.fail("CallbackError: Plot.on_update", "traceback", final=True))
    outcome = world.run()
    assert (outcome.reason, outcome.exit_code) == ("learner/0: CallbackError: Plot.on_update", 1)
    assert learner.times("start") == [0.0]
    assert outcome.failure.traceback == "traceback" and not outcome.failure.final  # it is shown


def test_a_node_that_asks_for_the_end_because_of_its_failure_has_time_to_save(world):
    learner = world.nodes["learner/0"]
    learner.stops_in = 20.0
    world.at(5.0, lambda: learner.say("stop", "no", finished=False, traceback="traceback"))
    outcome = world.run()
    assert (outcome.status, outcome.reason, outcome.exit_code) == ("failed", "no", 1)
    assert outcome.failure.traceback == "traceback" and not learner.times("kill")


def test_nothing_is_restarted_once_the_program_stops(world):
    world.use(actor=POLICY)
    actor = world.nodes["actor/0"]
    actor.stops_in = None
    world.at(5.0, lambda: actor.end(signal="SIGKILL"))
    finish_at(world, 5.5)  # while it waits to be restarted
    world.run()
    assert actor.times("start") == [0.0]


# Starts that the operating system refuses.


def refuse(world, name, until, error):
    """Has every start of a node fail until a time."""

    def start():
        if world.now < until:
            world.nodes[name].alive = False
            raise error

    world.nodes[name].on_start = start


def test_a_start_that_is_refused_is_a_failed_life(world):
    world.use(actor=POLICY)
    refuse(world, "actor/0", 6.0, BlockingIOError(11, "Resource temporarily unavailable"))
    finish_at(world, 100.0)
    assert world.run().status == "finished"
    actor = world.nodes["actor/0"]
    # More than three in a row: nothing is wrong with the node.
    assert actor.times("start") == [0.0, 1.0, 3.0, 7.0]
    cause = "could not be started: [Errno 11] Resource temporarily unavailable"
    assert actor.exit.causes == [cause] * 3
    assert not actor.heartbeat.restarted  # as the node itself asks
    assert world.said[0] == f"actor/0 {cause}: restarting in 1.0 s (restart 1); see actor/0.log"
    assert actor.heartbeat.status == GONE and actor.heartbeat.life == 3
    assert world.nodes["actor/1"].times("start") == [0.0]


def test_no_life_can_be_counted_while_the_disk_is_full(world):
    world.use(actor=POLICY)
    world.at(5.0, lambda: world.nodes["actor/0"].end(signal="SIGKILL"))
    world.refuse_lives = range(5, 20)
    finish_at(world, 100.0)
    assert world.run().status == "finished"
    assert world.nodes["actor/0"].times("start") == [0.0, 20.0]
    assert world.nodes["actor/0"].exit.causes[1].endswith("No space left on device")
    assert world.nodes["actor/0"].heartbeat.restarted


def test_a_node_that_can_never_be_started_ends_the_program_in_order(world):
    world.use(actor=POLICY)
    refuse(world, "actor/0", 1000.0, OSError(24, "Too many open files"))
    world.nodes["learner/0"].stops_in = 20.0  # it saves
    outcome = world.run()
    assert (outcome.status, outcome.exit_code) == ("failed", 1)
    assert outcome.reason.endswith("Too many open files (after 5 restarts, the most allowed)")
    assert world.nodes["learner/0"].exit.state == "ended"


def test_a_node_that_may_not_be_restarted_and_cannot_be_started_ends_the_program(world):
    refuse(world, "learner/0", 1000.0, OSError(24, "Too many open files"))
    outcome = world.run()
    assert outcome.reason == "learner/0 could not be started: [Errno 24] Too many open files"
    assert world.nodes["actor/0"].exit.state == "ended"


# Failures of the launcher itself.


def test_an_unexpected_error_of_the_loop_stops_the_nodes_in_order(world):
    def fail():
        raise KeyError("no such node")

    world.nodes["learner/0"].stops_in = 20.0  # it saves
    world.at(5.0, fail)
    outcome = world.run()
    assert (outcome.status, outcome.exit_code) == ("failed", 1)
    assert outcome.reason == "the launcher: waiting for events failed: KeyError: 'no such node'"
    assert "in fail" in outcome.failure.traceback
    assert world.nodes["learner/0"].times("stop") == [5.0]
    assert {node.exit.state for node in world.nodes.values()} == {"ended"}


def test_what_no_node_is_to_blame_for_stops_the_nodes_in_order(world):
    world.nodes["learner/0"].stops_in = 20.0  # it saves
    world.at(5.0, lambda: world.supervisor.fail("the cluster is gone"))
    outcome = world.run()
    assert (outcome.status, outcome.exit_code) == ("failed", 1)
    assert outcome.reason == "the cluster is gone"
    assert {node.exit.state for node in world.nodes.values()} == {"ended"}


def test_a_refused_step_is_tried_again_and_ends_the_program_if_that_lasts(world, monkeypatch):
    actor = world.nodes["actor/0"]
    refusals = iter([OSError(12, "Cannot allocate memory")] * 3)
    collect = actor.collect

    def refused():
        for error in refusals:
            raise error
        return collect()

    monkeypatch.setattr(actor, "collect", refused)
    finish_at(world, 5.0)
    assert world.run().status == "finished"
    said = "collecting actor/0 failed: [Errno 12] Cannot allocate memory; trying again"
    assert world.said == [said]
    assert "collecting actor/0 works again" in world.noted


def test_a_refused_step_that_lasts_ends_the_program(world, monkeypatch):
    actor = world.nodes["actor/0"]

    def refused():
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(actor, "collect", refused)
    outcome = world.run()
    assert outcome.reason.startswith("the launcher: collecting actor/0 failed 10 times in a row")
    assert world.nodes["learner/0"].exit.state == "ended"
    assert world.supervisor.hung() == ("actor/0",)


def test_a_node_that_could_not_be_asked_to_stop_is_asked_again(world, monkeypatch):
    learner = world.nodes["learner/0"]
    ask, refusals = learner.ask_to_stop, iter([OSError(11, "no")] * 3)

    def refused():
        for error in refusals:
            raise error
        ask()

    monkeypatch.setattr(learner, "ask_to_stop", refused)
    finish_at(world, 5.0)
    assert world.run().status == "finished"
    assert learner.times("stop") == [5.3]
    assert learner.exit.state == "ended" and learner.times("kill") == []


def test_a_node_that_could_not_be_killed_is_killed_later(world, monkeypatch):
    actor = world.nodes["actor/0"]
    actor.stops_in = None
    kill, refusals = actor.kill, iter([OSError(1, "no")])

    def refused():
        for error in refusals:
            raise error
        kill()

    monkeypatch.setattr(actor, "kill", refused)
    finish_at(world, 5.0)
    world.run()
    assert actor.exit.state == "killed"


def test_a_failing_stop_sequence_does_not_cost_the_learner_its_time(world, monkeypatch):
    actor, learner = world.nodes["actor/0"], world.nodes["learner/0"]
    actor.stops_in, learner.stops_in = None, 20.0
    stacks = iter([KeyError("a bug")])

    def show_stacks(also_if_stopped=False):
        for error in stacks:
            raise error

    monkeypatch.setattr(actor, "show_stacks", show_stacks)
    finish_at(world, 5.0)
    world.run()
    assert actor.exit.state == "killed" and learner.exit.state == "ended"
    assert any("KeyError: 'a bug'" in line for line in world.noted)


# Lost hosts.


def test_a_node_of_a_lost_host_is_restarted_when_the_host_is_back(world):
    world.use(actor=POLICY)
    actor = world.nodes["actor/0"]

    def lose():
        actor.unavailable_reason = "host h2 is lost"
        actor.end(error="host h2 is lost")

    world.at(5.0, lose)
    seen = []
    for when in (4.0, 6.0, 499.0, 502.0):
        world.at(when, lambda: seen.append(actor.heartbeat.status))
    world.at(500.0, lambda: setattr(actor, "unavailable_reason", None))
    finish_at(world, 600.0)
    assert world.run().status == "finished"
    assert seen == [UP, LOST, LOST, UP]
    assert actor.times("start")[0] == 0.0
    assert 500.0 <= actor.times("start")[1] <= 501.0
    assert actor.exit.causes == []  # it is not the node's failure
    assert "continuing without actor/0: host h2 is lost" in world.noted


def test_a_lost_host_of_an_essential_node_ends_the_program(world):
    world.use(replay=POLICY)
    replay = world.nodes["replay/0"]
    replay.essential = True

    def lose():
        replay.unavailable_reason = "host h1 is lost"
        replay.end(error="host h1 is lost")

    world.at(5.0, lose)
    outcome = world.run()
    assert (outcome.status, outcome.reason) == ("failed", "replay/0 host h1 is lost")
    assert outcome.exit_code == 75


def broken_host(world, *, worked=True, works_elsewhere=True, essential=False, lives=0.5):
    """Has actor/0 fail from its second life on, when its host is back after `worked`."""
    world.use(actor=POLICY)
    actor, other = (world.nodes[name] for name in ("actor/0", "actor/1"))
    actor.host, other.host = "h2", "h3" if works_elsewhere else "h2"
    actor.essential = essential

    def lose():
        if essential:  # without its host the program would end
            actor.on_start = lambda: world.after(lives, actor.fail)
            actor.end(signal="SIGKILL")
            return
        actor.unavailable_reason = "host h2 is lost"
        actor.end(error="host h2 is lost")
        world.after(10.0, come_back)

    def come_back():
        actor.unavailable_reason = None
        actor.on_start = lambda: world.after(lives, actor.fail)

    if worked:
        world.at(20.0, lose)
    else:
        come_back()
    return actor


def test_a_host_that_comes_back_broken_does_not_end_the_program(world):
    actor = broken_host(world)

    def repair():
        actor.on_start = lambda: None

    world.at(1500.0, repair)
    finish_at(world, 2000.0)
    assert world.run().status == "finished"
    pauses = [
        round(later - earlier - 0.5, 3)
        for earlier, later in itertools.pairwise(actor.times("start")[1:])
    ]
    # As of any node, and once that would have ended the program, up to five minutes.
    assert pauses == [
        1.0,
        2.0,
        4.0,
        8.0,
        16.0,
        32.0,
        64.0,
        128.0,
        256.0,
        300.0,
        300.0,
        300.0,
        300.0,
    ]
    assert "restarting in 2.0 s (restart 2); see actor/0.log" in world.said[1]
    assert world.said[2] == (
        "actor/0: KeyError: 3: restarting in 4.0 s "
        "(restart 3, 3 times in a row, on host h2 alone); see actor/0.log"
    )


@pytest.mark.parametrize(
    "how",
    [{"worked": False}, {"works_elsewhere": False}, {"essential": True}, {"lives": 11.0}],
    ids=str,
)
def test_what_may_fail_on_all_hosts_ends_the_program(world, how):
    broken_host(world, **how)
    finish_at(world, 2000.0)
    assert world.run().reason == "actor/0: KeyError: 3 (3 times in a row)"


# Hung nodes.


@pytest.mark.parametrize(
    ("cores", "stopped", "found", "cause"),
    [
        (0.0, False, 61.0, "made no progress for 6"),
        (1.0, False, 601.0, "made no progress for 60"),
        (0.0, True, 12.0, "was stopped by a signal (SIGSTOP)"),
    ],
    ids=["idle", "busy", "stopped"],
)
def test_a_hung_node_is_killed_and_restarted(world, cores, stopped, found, cause):
    world.use(actor=POLICY)
    actor = world.nodes["actor/0"]
    actor.cores, actor.is_stopped = cores, stopped
    actor.on_start = lambda: None if actor.events[1:] else actor.heartbeat.tick()

    def recover():
        actor.is_stopped = False

    world.at(found + 1.5, recover)
    finish_at(world, found + 5.0)
    assert world.run().status == "finished"
    # The supervisor looks once a second.
    assert actor.times("stacks") == [found]
    assert actor.times("kill") == [found + 1.0]
    assert actor.times("start") == [0.0, found + 2.0]
    hung = [line for line in world.said if "one step has taken" not in line]
    assert hung[0].startswith(f"actor/0 {cause}")
    assert hung[0].endswith("see its stacks in actor/0.log")
    assert actor.exit.causes[0].startswith(cause)


def test_a_start_that_is_refused_after_a_hang_is_not_that_hang(world):
    world.use(actor=POLICY)
    actor = world.nodes["actor/0"]
    actor.on_start = lambda: None if actor.events[1:] else actor.heartbeat.tick()
    world.refuse_lives = range(63, 75)
    finish_at(world, 200.0)
    assert world.run().status == "finished"
    hang, *refusals = actor.exit.causes
    assert hang.startswith("made no progress for 6")
    # More than three in a row: nothing is wrong with the node.
    assert refusals == ["could not be started: [Errno 28] No space left on device"] * 4


@pytest.mark.parametrize("other", ["waits", "works"])
def test_a_node_that_gets_on_or_waits_is_left_alone(world, other):
    world.use(actor=POLICY)
    first, second = world.nodes["actor/0"], world.nodes["actor/1"]

    def tick(node):
        node.heartbeat.tick()
        world.after(50.0, lambda: tick(node))

    first.on_start = lambda: tick(first)
    second.on_start = second.heartbeat.wait if other == "waits" else lambda: tick(second)
    finish_at(world, 1000.0)
    assert world.run().status == "finished"
    assert world.said == [  # once for the group, long before the limit, as steps stay as long
        "actor/0: one step has taken 31 s so far, without using the CPU; after 60 s it counts as "
        "hung: if its steps take that long, raise supervision.idle_limit (distrl launch: "
        "--idle_limit)"
    ]


def test_a_hung_node_that_may_not_be_restarted_ends_the_program(world):
    learner = world.nodes["learner/0"]
    learner.on_start = learner.heartbeat.tick
    outcome = world.run(limits=HangLimits(idle=30.0))
    assert outcome.reason.startswith("learner/0 made no progress for 3")
    assert outcome.failure.node == "learner/0"
    assert learner.times("kill") == [32.0]


def test_a_hung_node_that_cannot_be_killed_ends_the_program(world):
    """Nodes that are threads."""
    actor = world.nodes["actor/0"]
    actor.can_be_killed = actor.killable = False
    actor.stops_in, actor.kill_timeout = None, 0.5
    actor.on_start = actor.heartbeat.tick
    outcome = world.run(limits=HangLimits(idle=30.0))
    assert outcome.reason.startswith("actor/0 made no progress for 3")
    assert world.supervisor.hung() == ("actor/0",)
    assert world.now < 35.0


def test_without_limits_nothing_counts_as_hung(world):
    actor = world.nodes["actor/0"]
    actor.on_start = actor.heartbeat.tick
    finish_at(world, 1000.0)
    assert world.run(limits=HangLimits(None, None, None)).status == "finished"


# Stopping.


def test_nodes_are_stopped_phase_by_phase(world):
    for seconds, name in enumerate(NAMES):
        world.nodes[name].stops_in = 0.5 * seconds
    finish_at(world, 5.0)
    outcome = world.run()
    assert (outcome.status, outcome.reason, outcome.exit_code) == ("finished", "goal reached", 0)
    # The second actor takes 0.5 s, the learner 1 s.
    asked = {name: node.times("stop") for name, node in world.nodes.items()}
    assert asked == {"actor/0": [5.0], "actor/1": [5.0], "learner/0": [5.5], "replay/0": [6.5]}
    assert world.now == 8.0
    for node in world.nodes.values():
        assert node.exit.asked and node.exit.state == "ended"
        assert node.times("kill") == []


def test_all_nodes_are_woken_before_the_first_is_asked_to_stop(world):
    """The learner saves the replay's table, though the replay is asked to stop after it."""
    world.nodes["learner/0"].stops_in = 4.0
    finish_at(world, 5.0)
    world.run()
    assert [node.woken for node in world.nodes.values()] == [[5.0]] * len(NAMES)


def test_nodes_that_do_not_stop_are_killed_after_their_grace_period(world):
    actor, learner = world.nodes["actor/0"], world.nodes["learner/0"]
    actor.stops_in = learner.stops_in = None
    finish_at(world, 5.0)
    world.run(grace={"learner": 10.0})
    assert actor.events == [("start", 0.0), ("stop", 5.0), ("stacks", 7.7), ("kill", 8.0)]
    assert learner.events == [("start", 0.0), ("stop", 8.0), ("stacks", 17.7), ("kill", 18.0)]
    assert world.nodes["replay/0"].times("stop") == [18.0]
    assert actor.exit.state == learner.exit.state == "killed"
    assert world.said == [
        "actor/0 did not stop within 3 s; see its stacks in actor/0.log",
        "learner/0 did not stop within 10 s; see its stacks in learner/0.log",
    ]


def test_the_learner_has_thirty_seconds_unless_told_otherwise(world):
    world.nodes["learner/0"].stops_in = 29.0
    finish_at(world, 5.0)
    world.run()
    assert world.nodes["learner/0"].exit.state == "ended"
    assert world.nodes["replay/0"].times("stop") == [34.0]


def test_after_a_failure_nodes_that_save_nothing_get_little_time(world):
    for name in ("actor/1", "learner/0"):
        world.nodes[name].stops_in = None
    world.at(5.0, lambda: world.nodes["actor/0"].end(signal="SIGSEGV"))
    outcome = world.run()
    assert (outcome.reason, outcome.exit_code) == ("actor/0 was killed by SIGSEGV", 1)
    assert world.nodes["actor/1"].events[1:] == [("stop", 5.0), ("kill", 6.0)]
    assert world.nodes["learner/0"].events[1:] == [("stop", 6.0), ("stacks", 35.7), ("kill", 36.0)]
    assert world.said == [
        "actor/0 failed: stopping the other nodes",
        "learner/0 did not stop within 30 s; see its stacks in learner/0.log",
    ]
    assert "actor/1 did not stop within 1 s" in world.noted


def test_after_a_failure_a_large_table_has_its_time_to_be_freed(world):
    world.nodes["replay/0"].stops_in = 7.5  # of ten seconds, less two
    world.at(5.0, lambda: world.nodes["actor/0"].end(signal="SIGSEGV"))
    world.run(grace={"replay": 10.0})
    (asked,) = world.nodes["replay/0"].times("stop")
    assert world.now == asked + 7.5 and world.nodes["replay/0"].exit.state == "ended"
    assert world.said == ["actor/0 failed: stopping the other nodes"]


@pytest.mark.parametrize("failed", ["actor/0", "replay/0"])
def test_the_learner_has_its_time_to_save_after_a_failure_of_another_node(world, failed):
    world.nodes["learner/0"].stops_in = 59.0
    world.at(5.0, world.nodes[failed].fail)
    assert world.run(grace={"learner": 60.0}).failure.node == failed
    assert world.nodes["learner/0"].exit.state == "ended"


def test_a_learner_that_has_failed_itself_gets_little_time(world):
    learner = world.nodes["learner/0"]
    learner.stops_in = None
    world.at(5.0, lambda: learner.say("failure", "KeyError: 3", traceback=TRACEBACK))
    assert world.run().failure.node == "learner/0"
    assert learner.events[1:] == [("stop", 5.2), ("kill", 6.2)]


def test_so_does_a_node_of_a_user_s_own_group_of_that_name(world):
    learner = world.nodes["learner/0"]
    learner.stops_in, learner.may_return = None, True
    world.at(5.0, lambda: world.nodes["actor/0"].end(signal="SIGSEGV"))
    world.run()
    assert learner.events[1:] == [("stop", 5.0), ("kill", 6.0)]


def test_what_a_kill_does_not_end_is_given_up(world):
    actor = world.nodes["actor/0"]
    actor.stops_in, actor.killable, actor.kill_timeout = None, False, 0.5
    finish_at(world, 5.0)
    world.run()
    assert world.supervisor.hung() == ("actor/0",)
    assert world.now == 8.5


# What failed first.


def test_an_exception_that_echoes_a_sudden_death_is_not_blamed(world):
    actor, replay = world.nodes["actor/0"], world.nodes["replay/0"]
    world.at(5.0, lambda: actor.fail("CallError: replay is gone"))
    world.at(5.1, lambda: replay.end(signal="SIGKILL"))
    outcome = world.run()
    assert outcome.reason == "replay/0 was killed by SIGKILL"
    assert "later: actor/0 failed: CallError: replay is gone" in world.noted


def test_an_exception_without_a_death_is_blamed_after_a_moment(world):
    actor, replay = world.nodes["actor/0"], world.nodes["replay/0"]
    world.at(5.0, lambda: actor.fail("KeyError: 3"))
    world.at(5.3, lambda: replay.end(signal="SIGKILL"))
    outcome = world.run()
    assert outcome.reason == "actor/0: KeyError: 3"
    assert outcome.failure.traceback == TRACEBACK
    assert world.nodes["learner/0"].times("stop") == [5.2]


def test_the_earliest_exception_is_blamed_in_whatever_order_they_arrive(world):
    world.at(5.0, lambda: world.nodes["actor/0"].fail("ValueError: second"))
    world.at(5.1, lambda: world.nodes["learner/0"].fail("KeyError: first", age=0.5))
    outcome = world.run()
    assert outcome.reason == "learner/0: KeyError: first"
    assert "later: actor/0 failed: ValueError: second" in world.noted


def test_a_stop_request_before_a_failure_counts(world):
    world.at(5.0, lambda: world.nodes["learner/0"].say("stop", "goal reached", age=0.1))
    world.at(5.0, lambda: world.nodes["replay/0"].end(signal="SIGKILL"))
    world.at(5.0, lambda: world.nodes["actor/0"].fail("CallError"))
    outcome = world.run()
    assert (outcome.status, outcome.reason) == ("finished", "goal reached")
    assert "later: actor/0 failed: CallError" in world.noted


def test_a_stop_request_after_a_failure_does_not(world):
    world.at(5.0, lambda: world.nodes["actor/0"].fail("KeyError: 3", age=0.1))
    world.at(5.0, lambda: world.nodes["learner/0"].say("stop", "goal reached"))
    outcome = world.run()
    assert (outcome.status, outcome.reason) == ("failed", "actor/0: KeyError: 3")


def test_a_stop_request_may_say_that_the_goal_was_not_reached(world):
    world.at(5.0, lambda: world.nodes["learner/0"].say("stop", "loss is nan", finished=False))
    outcome = world.run()
    assert (outcome.status, outcome.reason, outcome.exit_code) == ("failed", "loss is nan", 1)
    assert outcome.failure.node == "learner/0"


@pytest.mark.parametrize(
    ("ending", "cause"),
    [
        ({"state": "ended", "code": 0}, "ended without being asked to"),
        ({"code": 3}, "exited with status 3"),
        ({"signal": "SIGSEGV"}, "was killed by SIGSEGV"),
        ({"signal": "SIGKILL"}, "was killed by SIGKILL"),
    ],
)
def test_a_silent_end_is_described(world, ending, cause):
    world.at(5.0, lambda: world.nodes["learner/0"].end(**ending))
    assert world.run().reason == f"learner/0 {cause}"


def test_a_kill_for_lack_of_memory_is_told(world, monkeypatch):
    monkeypatch.setattr("distrl.launch.supervision.outcome.oom_kills", lambda: 7)  # at the start
    monkeypatch.setattr("distrl.runtime.host_resources.oom_kills", lambda: 8)
    world.at(5.0, lambda: world.nodes["learner/0"].end(signal="SIGKILL"))
    expected = "learner/0 was killed by the kernel (SIGKILL): out of memory"
    assert world.run().reason == expected


def test_a_node_that_says_that_it_ended_is_blamed(world):
    def end():
        world.nodes["actor/0"].say("ended")
        world.nodes["actor/0"].end("ended", code=0)

    world.at(5.0, end)
    assert world.run().reason == "actor/0 ended without being asked to"


# Nodes that may return.


def returning(world, *names):
    """Lets nodes return; returns a function that has one of them do so."""
    for name in names:
        world.nodes[name].may_return = True

    def end(name):
        world.nodes[name].say("ended")
        world.nodes[name].end("ended", code=0)

    return end


def test_a_program_ends_when_all_nodes_have_returned(world):
    end = returning(world, *NAMES)
    for when, name in enumerate(NAMES, start=1):
        world.at(float(when), lambda name=name: end(name))
    outcome = world.run()
    assert (outcome.status, outcome.exit_code) == ("finished", 0)
    assert (outcome.reason, outcome.failure) == ("all nodes have returned", None)
    assert world.now == len(NAMES)
    assert world.nodes["actor/0"].heartbeat.status == GONE


def test_a_node_that_exits_with_status_0_has_returned(world):
    returning(world, *NAMES)
    for name in NAMES:
        world.at(1.0, lambda name=name: world.nodes[name].end("ended", code=0))
    assert world.run().status == "finished"


@pytest.mark.parametrize("policies", [{}, {"actor": POLICY, "learner": POLICY}])
def test_other_nodes_run_on_until_one_stops_the_program(world, policies):
    world.use(**policies)
    end = returning(world, "actor/0", "learner/0")
    world.at(1.0, lambda: end("actor/0"))
    world.at(50.0, lambda: world.nodes["replay/0"].say("stop", "enough"))
    assert world.run().reason == "enough"
    assert world.nodes["actor/0"].times("start") == [0.0]


def test_a_stop_by_the_last_node_that_returns_counts(world):
    returning(world, *NAMES)

    def stop_and_end():
        world.nodes["actor/0"].say("stop", "diverged", finished=False)
        for name in NAMES:
            world.nodes[name].end("ended", code=0)

    world.at(1.0, stop_and_end)
    assert world.run().reason == "diverged"


def test_an_exception_in_a_thread_of_a_node_that_returns_counts(world):
    returning(world, *NAMES)

    def fail_and_end():
        world.nodes["actor/0"].say("failure", "KeyError: 3 (in thread 'x')", traceback=TRACEBACK)
        for name in NAMES:
            world.nodes[name].end("ended", code=0)

    world.at(1.0, fail_and_end)
    assert world.run().reason == "actor/0: KeyError: 3 (in thread 'x')"


def test_nodes_that_may_return_are_restarted_when_they_fail(world):
    world.use(actor=POLICY)
    end = returning(world, *NAMES)
    world.at(1.0, lambda: world.nodes["actor/0"].fail())
    world.at(1.0, lambda: [end(name) for name in NAMES[1:]])
    world.at(5.0, lambda: end("actor/0"))
    outcome = world.run()
    assert (outcome.status, world.now) == ("finished", 5.0)
    assert world.nodes["actor/0"].times("start") == [0.0, 2.0]


def test_nodes_on_standby_need_not_return(world):
    end = returning(world, *NAMES)
    world.at(1.0, lambda: [end(name) for name in NAMES if name != "actor/1"])
    assert world.run(standby=["actor/1"]).status == "finished"


# Scaling.


def test_standby_nodes_start_when_the_group_is_scaled_up(world):
    world.at(5.0, lambda: world.supervisor.scale("actor", 2))
    finish_at(world, 10.0)
    world.run(standby=["actor/1"])
    assert world.nodes["actor/1"].events == [("start", 5.0), ("stop", 10.0)]
    assert world.said[0] == "actor/1: starting, scaled up"


def test_scaling_down_stops_the_last_nodes_of_the_group(world):
    world.use(actor=POLICY)
    actor = world.nodes["actor/1"]
    world.at(5.0, lambda: world.supervisor.scale("actor", 1))
    finish_at(world, 100.0)
    world.run()
    assert actor.events == [("start", 0.0), ("stop", 5.0)]
    assert actor.exit.state == "ended" and actor.exit.causes == []
    assert actor.heartbeat.status == GONE
    assert world.nodes["actor/0"].times("stop") == [100.0]
    assert world.said == ["actor/1: stopping, scaled down"]


def test_a_node_that_ignores_being_scaled_down_is_killed(world):
    world.use(actor=POLICY)
    actor = world.nodes["actor/1"]
    actor.stops_in = None
    world.at(5.0, lambda: world.supervisor.scale("actor", 1))
    finish_at(world, 100.0)
    assert world.run().status == "finished"
    (killed,) = actor.times("kill")
    assert 8.0 < killed <= 9.0
    assert len(actor.times("start")) == 1


def test_scaling_up_again_while_a_node_stops_restarts_it(world):
    actor = world.nodes["actor/1"]
    actor.stops_in = 2.0
    world.at(5.0, lambda: world.supervisor.scale("actor", 1))
    world.at(6.0, lambda: world.supervisor.scale("actor", 2))
    finish_at(world, 100.0)
    assert world.run().status == "finished"
    assert actor.times("start") == [0.0, 7.0]


def test_scaling_down_cancels_a_planned_restart(world):
    world.use(actor=POLICY)
    actor = world.nodes["actor/1"]
    world.at(5.0, lambda: actor.end(signal="SIGKILL"))
    world.at(5.5, lambda: world.supervisor.scale("actor", 1))
    seen = []
    for when in (5.2, 6.0, 21.0):
        world.at(when, lambda: seen.append(actor.heartbeat.status))
    world.at(20.0, lambda: world.supervisor.scale("actor", 2))
    finish_at(world, 100.0)
    world.run()
    assert actor.times("start") == [0.0, 20.0]
    assert seen == [DOWN, GONE, UP]  # nobody waits for it, until it is scaled up


def test_a_node_of_a_lost_host_may_be_scaled_down_and_up_again(world):
    world.use(actor=POLICY)
    actor, seen = world.nodes["actor/1"], []

    def lose():
        actor.unavailable_reason = "host h2 is lost"
        actor.end(error="host h2 is lost")

    world.at(5.0, lose)
    world.at(7.0, lambda: world.supervisor.scale("actor", 1))
    world.at(20.0, lambda: world.supervisor.scale("actor", 2))
    world.at(30.0, lambda: setattr(actor, "unavailable_reason", None))
    for when in (6.0, 8.0, 33.0):
        world.at(when, lambda: seen.append(actor.heartbeat.status))
    finish_at(world, 100.0)
    world.run()
    assert seen == [LOST, GONE, UP]
    assert len(actor.times("start")) == 2


def test_a_node_that_was_never_started_stays_absent_when_it_is_scaled_down(world):
    seen = []
    world.at(5.0, lambda: world.supervisor.scale("actor", 1))
    world.at(6.0, lambda: seen.append(world.nodes["actor/1"].heartbeat.status))
    finish_at(world, 10.0)
    world.run(standby=["actor/1"])
    assert seen == [ABSENT]


def test_what_a_stopping_node_says_does_not_count(world):
    actor = world.nodes["actor/1"]
    actor.stops_in = None

    def complain():
        actor.fail("CallError: interrupted")

    world.at(5.0, lambda: world.supervisor.scale("actor", 1))
    world.at(6.0, complain)
    finish_at(world, 100.0)
    assert world.run().status == "finished"
    assert "actor/1: failure CallError: interrupted" in world.noted


# Signals.


def test_ctrl_c_stops_in_order(world):
    world.nodes["actor/0"].stops_in = 1.0
    world.at(5.0, lambda: world.signal(signal.SIGINT))
    outcome = world.run()
    assert (outcome.status, outcome.reason, outcome.exit_code) == ("stopped", "Ctrl-C", 130)
    assert world.said == ["stopping; press Ctrl-C again to kill immediately"]
    assert world.nodes["actor/0"].times("stop") == [5.0]
    assert world.nodes["learner/0"].times("stop") == [6.0]
    assert {node.exit.state for node in world.nodes.values()} == {"ended"}


def test_ctrl_c_twice_kills_at_once(world):
    for node in world.nodes.values():
        node.stops_in = None
    world.at(5.0, lambda: world.signal(signal.SIGINT))
    world.at(6.0, lambda: world.signal(signal.SIGINT))
    outcome = world.run()
    assert (outcome.status, outcome.exit_code) == ("stopped", 130)
    assert [node.times("kill") for node in world.nodes.values()] == [[6.0]] * 4
    assert world.nodes["learner/0"].times("stop") == []
    assert world.said[-1] == "Ctrl-C again: killing all nodes"
    assert world.now == 6.0


def test_ctrl_c_twice_gives_up_nodes_that_cannot_be_killed(world):
    """Nodes that are threads."""
    for node in world.nodes.values():
        node.stops_in, node.killable, node.kill_timeout = None, False, 0.5
    world.at(5.0, lambda: world.signal(signal.SIGINT))
    world.at(6.0, lambda: world.signal(signal.SIGINT))
    assert world.run().exit_code == 130
    assert world.now == 6.5
    assert world.nodes["learner/0"].times("stop") == []
    assert world.supervisor.hung() == tuple(NAMES)


def test_ctrl_c_while_stopping_explains_itself_and_kills_the_second_time(world):
    world.nodes["learner/0"].stops_in = None
    finish_at(world, 5.0)
    for when in (6.0, 7.0):
        world.at(when, lambda: world.signal(signal.SIGINT))
    assert world.run().status == "finished"
    assert world.said == [
        "already stopping; press Ctrl-C again to kill immediately",
        "Ctrl-C again: killing all nodes",
    ]
    assert world.nodes["learner/0"].times("kill") == [7.0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_stop_in_order(world, number):
    world.at(5.0, lambda: world.signal(number))
    outcome = world.run()
    assert (outcome.status, outcome.exit_code) == ("stopped", 128 + number)
    assert outcome.reason == f"{number.name} to the launcher"
    assert world.nodes["actor/0"].times("stop") == [5.0]


def test_a_signal_before_the_first_node_starts_none(world):
    world.signal(signal.SIGINT)
    assert world.run().exit_code == 130
    assert all(node.events == [] for node in world.nodes.values())


def test_a_failure_just_before_ctrl_c_is_still_the_cause(world):
    world.at(5.0, lambda: world.nodes["actor/0"].fail("KeyError: 3"))
    world.at(5.1, lambda: world.signal(signal.SIGINT))
    assert world.run().reason == "actor/0: KeyError: 3"
