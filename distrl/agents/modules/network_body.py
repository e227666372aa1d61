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
from distrl.agents.modules.inputs import Inputs, make_inputs
from distrl.agents.modules.own_networks import OwnCore, check_features, check_outputs
from distrl.agents.modules.recurrence import reset_unroll
from distrl.errors import ConfigError
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
    recurrent = config.core != "none"
    own_core = OwnCore(config.core) if callable(config.core) else None
    make_torso = _torso_maker(config, inputs.spec, linear, with_last)

    def parts() -> tuple[Callable[..., Any], tuple[Callable[..., Any], ...]]:
        embed = _embedding(config, inputs, encode_action, make_torso())
        core = (
            hk.LSTM(config.core_size, name="core")
            if own_core is None
            else _checked(own_core.build(), config.core)
        )
        heads = make_heads() if config.heads is None else _own_heads(config.heads, output_shapes)

        def init(timestep: TimeStep, state: State) -> Any:
            x = embed(timestep)
            return heads(core(x, state)[0] if recurrent else x)

        return init, (embed, core, heads)

    def initial_state(batch_size: int) -> State:
        if not recurrent:
            return ()
        if own_core is not None:
            return own_core.initial_state(batch_size)
        # NumPy's, since jnp would initialise a backend.
        start: Any = np.zeros((batch_size, config.core_size), np.float32)
        return hk.LSTMState(hidden=start, cell=start)

    with_state = hk.multi_transform_with_state(parts)
    zeros = specs.zeros(specs.timestep_struct(env_spec), 1)

    @jax.jit  # without it, some hundred small operations would be compiled one by one
    def init(rng: jax.Array) -> Params:
        params, kept = with_state.init(rng, zeros, initial_state(1))
        if kept:
            raise ConfigError(
                f"network: {', '.join(kept)} of your own has state in Haiku, as BatchNorm does; "
                "only parameters are learned and sent to the actors: take layers without it"
            )
        return params

    embed, core, heads = hk.multi_transform(parts).apply
    step, unroll = _applied(embed, core if recurrent else None, heads, initial_state)
    return Network(init, initial_state, step, unroll, inputs.legal)


def _torso_maker(
    config: Any, spec: Nest, linear: torsos.MakeLayer, with_last: bool
) -> Callable[[], torsos.Torso]:
    """Returns what makes the torso, inside `hk.transform`. Args: spec: spec of what it sees."""
    if callable(config.torso):
        return functools.partial(own_networks.make_torso, config.torso)
    return torsos.for_observation(
        config.torso,
        config.hidden_sizes,
        config.activation,
        spec,
        linear,
        config.scale_integers,
        with_last,
        config.image_layout,
        config.one_hot_integers,
        config.cnn_dtype,
    )


def _embedding(
    config: Any, inputs: Inputs, encode_action: Callable[[Any], jax.Array], torso: torsos.Torso
) -> Callable[[TimeStep], Any]:
    """Returns the function from timesteps [N] to what the core takes, or the heads do, [N, F]."""
    recurrent, own_torso = config.core != "none", callable(config.torso)

    def embed(timestep: TimeStep) -> Any:
        x = torso(inputs.take(timestep.observation))
        if own_torso and (recurrent or config.heads is None):
            x = check_features(x, config.torso, "torso", len(timestep.step_type))
        if not (recurrent and config.core_inputs_prev_action_reward):
            return x
        action = encode_action(timestep.prev_action)
        reward = jnp.clip(timestep.reward, -1, 1)[:, None]
        return jnp.concatenate([x, action, reward], axis=-1)

    return embed


def _checked(
    core: Callable[[jax.Array, State], tuple[jax.Array, State]], part: own_networks.Part
) -> Callable[[jax.Array, State], tuple[jax.Array, State]]:
    """Returns a core that checks its outputs. Args: part: the user's function or cell."""
    deterministic = own_networks.deterministic(core, part, "core")

    def run(x: jax.Array, state: State) -> tuple[jax.Array, State]:
        output, state = deterministic(x, state)
        return check_features(output, part, "core", x.shape[0]), state

    return run


def _own_heads(part: own_networks.Part, output_shapes: Nest) -> Callable[[Any], Nest]:
    """Returns the user's heads, inside `hk.transform`, which check their outputs."""
    function = own_networks.make_heads(part)

    def heads(x: Any) -> Nest:
        rows = jax.tree.leaves(x)[0].shape[0]
        return check_outputs(function(x), output_shapes, part, rows)

    return heads


def _applied(
    embed: Callable[..., Any],
    core: Callable[..., tuple[jax.Array, State]] | None,
    heads: Callable[..., Nest],
    initial_state: Callable[[int], State],
) -> tuple[Callable[..., tuple[Any, State]], Callable[..., tuple[Any, State]]]:
    """Returns `step` and `unroll` of a `Network` from its parts, as functions of parameters."""

    def apply(part: str, params: Params, noise: jax.Array | None, streams: int, rows: Any) -> Any:
        key = None if noise is None else derive(noise, part)
        with noisy.rows_of_streams(streams):
            return {"torso": embed, "heads": heads}[part](params, key, rows)

    def step(
        params: Params, timestep: TimeStep, state: State, noise: jax.Array | None = None
    ) -> tuple[Any, State]:
        batch = len(timestep.step_type)
        x = apply("torso", params, noise, batch, timestep)
        if core is not None:
            x, state = core(params, None, x, state)
        return apply("heads", params, noise, batch, x), state

    def unroll(
        params: Params, timestep: TimeStep, state: State, noise: jax.Array | None = None
    ) -> tuple[Any, State]:
        length, batch = timestep.step_type.shape
        x = apply("torso", params, noise, batch, merge_steps(timestep))
        if core is not None:
            x, state = reset_unroll(
                functools.partial(core, params, None),
                unmerge_steps(x, length, batch),
                timestep.step_type == StepType.FIRST,
                state,
                initial_state(batch),
            )
            x = merge_steps(x)
        outputs = apply("heads", params, noise, batch, x)
        return unmerge_steps(outputs, length, batch), state

    return step, unroll
