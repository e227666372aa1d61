"""The struct of what an agent stores, and the recurrent state that must keep its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distrl.agents.structs import extras_struct, initial_row, state_struct
from distrl.envs import PythonEnvironment
from distrl.errors import SpecError
from distrl.inferencer import Inferencer
from distrl.testing import CheckingAgent, CountingEnvironment

SPEC = PythonEnvironment(CountingEnvironment, "counting").spec()


class Remembering(CheckingAgent):
    """A CheckingAgent whose state passes through a function after each step."""

    def __init__(self, change, initial=None):
        super().__init__(SPEC, recurrent=True)
        self._change, self._initial = change, initial

    def initial_state(self, batch_size):
        return super().initial_state(batch_size) if self._initial is None else self._initial

    def actor_step(self, rng, params, timestep, state, evaluation=False):
        memory = CheckingAgent.initial_state(self, timestep.step_type.shape[0])
        output, memory = super().actor_step(rng, params, timestep, memory, evaluation)
        return output, self._change(memory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state[:1], r"state as float32\[3, 2\], and returns float32\[1, 2\]"),
        (lambda state: jnp.mean(state, axis=0), r"float32\[3, 2\], and returns float32\[2\]"),
        (lambda state: state.astype(jnp.int32), r"float32\[3, 2\], and returns int32\[3, 2\]"),
        (lambda state: (), r"state as float32\[3, 2\], and returns none"),
        (lambda state: {"h": state}, r"state as float32\[3, 2\], and returns none"),
    ],
)
def test_a_state_of_another_form_after_a_step_is_refused(change, message):
    with pytest.raises(SpecError, match="actor_step was given " + ".*" + message) as error:
        extras_struct(Remembering(change))
    assert "\n" not in str(error.value)


class Returning(CheckingAgent):
    """A CheckingAgent whose `actor_step` returns what a function makes of its result."""

    def __init__(self, change):
        super().__init__(SPEC, recurrent=False)
        self._change = change

    def actor_step(self, rng, params, timestep, state, evaluation=False):
        return self._change(*super().actor_step(rng, params, timestep, state, evaluation))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda output, state: output, "and returns AgentOutput$"),
        (lambda output, state: output.action, "and returns ShapeDtypeStruct$"),
        (lambda output, state: (output.action, state), "and returns ShapeDtypeStruct, tuple$"),
        (lambda output, state: (*output, state), "and returns ShapeDtypeStruct, dict, tuple$"),
        (
            lambda output, state: (output._replace(action=output.action[0]), state),
            r"^actions of the agent's actor_step: expected int32\[3\], got int32\[\]$",
        ),
        (
            lambda output, state: (output._replace(action=output.action * 0.5), state),
            r"expected int32\[3\], got float32\[3\]$",
        ),
    ],
)
def test_what_is_no_result_of_an_actors_step_is_refused(change, message):
    with pytest.raises(SpecError, match=message):
        extras_struct(Returning(change))


def test_a_state_of_an_agent_that_declares_none_is_refused():
    with pytest.raises(SpecError, match=r"given no state, and returns float32\[3, 2\]"):
        extras_struct(Remembering(lambda state: state, initial=()))


def test_no_leaves_are_no_state_whatever_holds_them():
    assert set(extras_struct(Remembering(lambda state: None, initial=()))) == {"seen"}


def test_a_state_that_jax_makes_narrower_is_the_same():
    class Wide(CheckingAgent):
        def initial_state(self, batch_size):
            return np.zeros((batch_size, 2), np.float64)

    agent = Wide(SPEC, recurrent=True)
    number = jax.ShapeDtypeStruct((), np.float32)
    assert extras_struct(agent) == {"seen": number}
    assert state_struct(agent) == jax.ShapeDtypeStruct((2,), np.float32)


class Member(CheckingAgent):
    """An agent whose memory is what a function makes of the size of a batch."""

    def __init__(self, initial):
        super().__init__(SPEC, recurrent=True)
        self._initial = initial

    def initial_state(self, batch_size):
        return {"head": self._initial(batch_size)}


@pytest.mark.parametrize("initial", [jnp.arange, lambda size: jnp.full(size, size, jnp.int32)])
def test_streams_that_begin_with_states_of_their_own_are_refused(initial):
    message = r"^agent's initial_state\(3\) has rows .* in state\['head'\]: .* timestep\.env_id"
    with pytest.raises(SpecError, match=message):
        Inferencer(Member(initial), None, seed=0, max_streams=4)


def test_a_state_that_is_no_number_is_the_same_in_each_row():
    row = initial_row(Member(lambda size: np.full((size, 2), np.nan, np.float32)))
    assert row["head"].shape == (1, 2)


def test_a_typed_key_in_the_state_is_refused():
    agent = Member(lambda size: jax.random.split(jax.random.key(0), size))
    with pytest.raises(SpecError, match=r"^agent's recurrent state\['head'\] is a typed key"):
        state_struct(agent)
