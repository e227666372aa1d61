"""A network's torso, core and heads as pure functions over parameters.

The learner's unroll applies torso and heads to all T + 1 steps at once, and scans only the core: on
a CPU, XLA runs convolutions inside a scan very slowly.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from distrl import specs
from distrl.agents.modules import noisy, own_networks, torsos
from distrl.agents.modules.inputs import make_inputs
from distrl.agents.modules.own_networks import OwnCore, check_features, check_outputs
from distrl.agents.modules.recurrence import reset_unroll
from distrl.learner_group.devices import merge_steps, unmerge_steps
from distrl.random_keys import derive
from distrl.specs import EnvironmentSpec
from distrl.types import Nest, Params, State, StepType, TimeStep


@dataclasses.dataclass(frozen=True)
class Network:
    """Pure functions over parameters; the functions that make networks define their outputs.

    Attributes:
      init: rng -> params.
      initial_state: batch size -> state [B, ...].
      step: (params, timestep [B], state [B], noise) -> (outputs [B, ...], state [B]). Does not
        reset the state at FIRST.
      unroll: (params, timestep [T, B], state [B], noise) -> (outputs [T, B, ...], state [B] after
        the last step). Resets the state at FIRST.

      legal: observation [..., *] -> bool [..., num_actions], which actions are legal; None: all.

    `noise` is a raw key, from which noisy layers draw for each step of each stream; None, the
    default: they use their means. Without noisy layers it has no effect.
    """

    init: Callable[[jax.Array], Params]
    initial_state: Callable[[int], State]
    step: Callable[..., tuple[Any, State]]
    unroll: Callable[..., tuple[Any, State]]
    legal: Callable[[Nest], jax.Array] | None = None


def build(
    config: Any,
    env_spec: EnvironmentSpec,
    encode_action: Callable[[Any], jax.Array],
    make_heads: Callable[[], Callable[[jax.Array], Nest]],
    output_shapes: Nest,
    linear: torsos.MakeLayer = hk.Linear,
    with_last: bool = True,
) -> Network:
    """Returns a network of `config`'s torso and core, and heads for features [N, F].

    Args:
      config: a `NetworkConfig`.
      env_spec: spec of the environment.
      encode_action: from actions to the core's inputs.
      make_heads: makes the heads, inside `hk.transform`; not used if the config has its own.
      output_shapes: nest of the heads' outputs' shapes, without N.
      linear: makes the fully connected layers of the torso.
      with_last: whether the torso has its last fully connected layer.
    """
    inputs = make_inputs(env_spec, config.inputs, config.mask_actions)
    own_torso = config.torso if callable(config.torso) else None
    own_core = OwnCore(config.core) if callable(config.core) else None
    recurrent = config.core != "none"
    if own_torso is None:
        make_torso = torsos.for_observation(
            config.torso,
            config.hidden_sizes,
            config.activation,
            inputs.spec,
            linear,
            config.scale_integers,
            with_last,
            config.image_layout,
            config.one_hot_integers,
        )
    else:
        make_torso = functools.partial(own_networks.make_torso, own_torso)

    def parts() -> tuple[Callable[..., Any], tuple[Callable[..., Any], ...]]:
        torso = make_torso()
        core = hk.LSTM(config.core_size, name="core") if own_core is None else checked(own_core)
        heads = make_heads() if config.heads is None else own_heads()

        def embed(timestep: TimeStep) -> Any:  # [N, ...] to [N, F]
            x = torso(inputs.take(timestep.observation))
            if own_torso is not None and (recurrent or config.heads is None):
                check_features(x, own_torso, "torso", len(timestep.step_type))
            if not (recurrent and config.core_inputs_prev_action_reward):
                return x
            action = encode_action(timestep.prev_action)
            reward = jnp.clip(timestep.reward, -1, 1)[:, None]
            return jnp.concatenate([x, action, reward], axis=-1)

        def init(timestep: TimeStep, state: State) -> Any:
            x = embed(timestep)
            return heads(core(x, state)[0] if recurrent else x)

        return init, (embed, core, heads)

    def own_heads() -> Callable[[Any], Nest]:
        function = own_networks.make_heads(config.heads)

        def heads(x: Any) -> Nest:
            rows = jax.tree.leaves(x)[0].shape[0]
            return check_outputs(function(x), output_shapes, config.heads, rows)

        return heads

    def checked(own: OwnCore) -> Callable[[jax.Array, State], tuple[jax.Array, State]]:
        core = own.build()

        def run(x: jax.Array, state: State) -> tuple[jax.Array, State]:
            output, state = core(x, state)
            return check_features(output, config.core, "core", x.shape[0]), state

        return run

    transformed = hk.multi_transform(parts)
    embed, core, heads = transformed.apply

    def initial_state(batch_size: int) -> State:
        if not recurrent:
            return ()
        if own_core is not None:
            return own_core.initial_state(batch_size)
        # NumPy's, since jnp would initialise a backend.
        start: Any = np.zeros((batch_size, config.core_size), np.float32)
        return hk.LSTMState(hidden=start, cell=start)

    zeros = specs.zeros(specs.timestep_struct(env_spec), 1)

    @jax.jit  # without it, some hundred small operations would be compiled one by one
    def init(rng: jax.Array) -> Params:
        return transformed.init(rng, zeros, initial_state(1))

    def apply(part: str, params: Params, noise: jax.Array | None, streams: int, rows: Any) -> Any:
        key = None if noise is None else derive(noise, part)
        with noisy.rows_of_streams(streams):
            return {"torso": embed, "heads": heads}[part](params, key, rows)

    def step(
        params: Params, timestep: TimeStep, state: State, noise: jax.Array | None = None
    ) -> tuple[Any, State]:
        batch = len(timestep.step_type)
        x = apply("torso", params, noise, batch, timestep)
        if recurrent:
            x, state = core(params, None, x, state)
        return apply("heads", params, noise, batch, x), state

    def unroll(
        params: Params, timestep: TimeStep, state: State, noise: jax.Array | None = None
    ) -> tuple[Any, State]:
        length, batch = timestep.step_type.shape
        x = apply("torso", params, noise, batch, merge_steps(timestep))
        if recurrent:
            x, state = reset_unroll(
                lambda inputs, s: core(params, None, inputs, s),
                unmerge_steps(x, length, batch),
                timestep.step_type == StepType.FIRST,
                state,
                initial_state(batch),
            )
            x = merge_steps(x)
        outputs = apply("heads", params, noise, batch, x)
        return unmerge_steps(outputs, length, batch), state

    return Network(init, initial_state, step, unroll, inputs.legal)
