"""Networks of agents: a torso, optionally a recurrent core, and heads.

`make_network` (a policy and a value) and `make_q_network` (action values) return pure functions.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import haiku as hk
import jax
import jax.numpy as jnp

from distrl.agents.modules import distributions, normals, torsos
from distrl.agents.modules.cnns import DTYPES
from distrl.agents.modules.images import LAYOUTS
from distrl.agents.modules.inputs import make_inputs, masked
from distrl.agents.modules.network_body import Network, build
from distrl.agents.modules.noisy import NoisyLinear
from distrl.agents.modules.own_networks import as_part
from distrl.agents.settings import InputSettings
from distrl.errors import ConfigError
from distrl.field_checks import check_choice, check_count, check_flag, check_names, check_sizes
from distrl.specs import EnvironmentSpec
from distrl.types import Nest, Params, State, TimeStep


@dataclasses.dataclass(frozen=True)
class NetworkConfig(InputSettings):
    """Settings of an agent's network.

    Attributes:
      torso: "mlp", for all but images of 36 pixels and more, or the CNN of all images: "nature_cnn"
        (Mnih et al. 2015); "shallow_cnn" (Mnih et al. 2013), in a third of its time;
        "impala_resnet" (Espeholt et al. 2018, the deep one); "small_cnn", for images of any size.
        "auto": "nature_cnn" for images of 36 pixels and more,
        "small_cnn" for smaller ones, the MLP for all else. In a nest of images and others, the MLP
        takes the features of the images' CNNs with the rest. Or your own: a function in Haiku from
        the observation [N, ...] to features [N, F], or a module of flax.linen.
      hidden_sizes: sizes of the MLP's layers.
      activation: the MLP's, "tanh" or "relu"; the CNNs use relu.
      core: "none" or "lstm", or your own: a function that returns an `hk.RNNCore`, or a cell of
        flax.linen such as `GRUCell(64)`. Its state is zeros at first.
      core_size: units of the LSTM.
      core_inputs_prev_action_reward: whether the previous action and the reward (clipped to
        [-1, 1]) are inputs of the core.
      scale_integers: whether integers, such as the bytes of Atari's RAM, are scaled from their
        bounds to [0, 1]; False: only the bytes of images are, by 255. Floats are left as they are:
        there is the transform `observation_normalizer`.
      one_hot_integers: whether symbols, bounded integers of at most 64 values such as the cells of
        a MiniGrid, become one-hot instead; a `DiscreteArray` always does.
      image_layout: order of the axes of images: "chw", "hwc", or "auto", by shape: equal axes are
        the sides, else the shorter of the first and the last axis has the channels.
      cnn_dtype: what the CNNs of images compute in, "float32" or "bfloat16"; parameters and
        features are float32. bfloat16 is faster on GPUs, and on CPUs with AMX with JAX 0.12.
      inputs: names of the parts of the observation that the torso sees, such as "camera" or
        "arm.angle"; empty: all, but for the mask.
      mask_actions: whether the part "action_mask" of a dict, [num_actions], says which actions are
        legal (not 0; if none is, all are). No other is taken, or counts in a loss.
      heads: your own, from features [N, F] (without a core, from whatever the torso returns) to
        the network's outputs: a policy's parameters and values [N], or action values [N,
        num_actions]; a function in Haiku or a module of flax.linen. None: the algorithm's.
    """

    BEFORE: ClassVar[Mapping[str, Any]] = {
        **InputSettings.BEFORE,
        "image_layout": "chw",
        "cnn_dtype": "float32",
        "inputs": (),
        "mask_actions": False,
    }

    torso: str | Callable[..., Any] = "auto"
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    core: str | Callable[..., Any] = "none"
    core_size: int = 64
    core_inputs_prev_action_reward: bool = True
    scale_integers: bool = True
    one_hot_integers: bool = False
    image_layout: str = "auto"
    cnn_dtype: str = "float32"
    inputs: tuple[str, ...] = ()
    mask_actions: bool = True
    heads: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        for field in ("torso", "core", "heads"):
            value = getattr(self, field)
            if callable(value):
                object.__setattr__(self, field, as_part(value, field))
        if not callable(self.torso):
            check_choice(self, "torso", ("auto", *torsos.TORSOS), "network")
        check_choice(self, "activation", tuple(torsos.ACTIVATIONS), "network")
        if not callable(self.core):
            check_choice(self, "core", ("none", "lstm"), "network")
        if self.heads is not None and not callable(self.heads):
            raise ConfigError(
                "network.heads: expected a function, a module of flax.linen, or None, got "
                f"{self.heads!r}"
            )
        check_sizes(self, "hidden_sizes", "network")
        check_count(self, "core_size", "network")
        flags = ("core_inputs_prev_action_reward", "scale_integers", "one_hot_integers")
        for field in (*flags, "mask_actions"):
            check_flag(self, field, "network")
        check_choice(self, "image_layout", LAYOUTS, "network")
        check_choice(self, "cnn_dtype", tuple(DTYPES), "network")
        if callable(self.torso) and self.cnn_dtype != "float32":
            raise ConfigError(
                f"network.cnn_dtype={self.cnn_dtype}: a torso of your own has a dtype of its own; "
                "convert what it computes with, and leave cnn_dtype at float32"
            )
        check_names(self, "inputs", "network")


def check_network(settings: Any) -> None:
    """Refuses a `network` that is no network; a function or Flax module becomes a torso.

    Args:
      settings: the dataclass of an algorithm, with the field `network`.
    """
    network = settings.network
    if callable(network):
        (field,) = (f for f in dataclasses.fields(settings) if f.name == "network")
        with_torso = dataclasses.replace(cast(NetworkConfig, field.default), torso=network)
        object.__setattr__(settings, "network", with_torso)
    elif not isinstance(network, NetworkConfig):
        raise ConfigError(
            "agent.network: expected a NetworkConfig, a function in Haiku, or a module of "
            f"flax.linen, got {network!r}"
        )


def check_late_rewards(settings: Any, env_spec: EnvironmentSpec) -> None:
    """Refuses a core that gets the previous reward where rewards are late.

    It would act on what became known in a step, and learn from the previous action's final reward.

    Args:
      settings: an algorithm's.
      env_spec: spec of the environment as the agent sees it.
    """
    network = getattr(settings, "network", None)
    if not env_spec.reward_delay or not isinstance(network, NetworkConfig):
        return
    if network.core != "none" and network.core_inputs_prev_action_reward:
        raise ConfigError(
            "agent.network.core_inputs_prev_action_reward=True: rewards are known up to "
            f"{env_spec.reward_delay} steps late, so that the core would learn from rewards that "
            "it does not get when it acts; set it to False"
        )


@dataclasses.dataclass(frozen=True)
class ActorCriticNetwork:
    """A `Network` with the policy's parameters [..., *] and a value [...] as outputs; no noise.

    Attributes:
      distribution: the policy's distribution.
    """

    distribution: distributions.Distribution
    init: Callable[[jax.Array], Params]
    initial_state: Callable[[int], State]
    step: Callable[[Params, TimeStep, State], tuple[Nest, jax.Array, State]]
    unroll: Callable[[Params, TimeStep, State], tuple[Nest, jax.Array, State]]


def make_network(config: NetworkConfig, env_spec: EnvironmentSpec) -> ActorCriticNetwork:
    """Returns the actor-critic network of `config` for an environment.

    Raises:
      ConfigError: it can't take the observations or actions.
    """
    distribution = distributions.for_action(env_spec.action)

    def make_heads() -> Callable[[jax.Array], tuple[Nest, jax.Array]]:
        policy_head = _policy_head(distribution)
        value_head = hk.Linear(1, w_init=torsos.scaled(1.0), name="value_head")
        return lambda x: (policy_head(x), jnp.squeeze(value_head(x), axis=-1))

    outputs = distribution.params_shape, ()
    body = build(config, env_spec, distribution.encode, make_heads, outputs)

    def with_mask(policy: Nest, timestep: TimeStep) -> Nest:
        return policy if body.legal is None else masked(policy, body.legal(timestep.observation))

    def step(params: Params, timestep: TimeStep, state: State) -> tuple[Nest, jax.Array, State]:
        (policy, value), state = body.step(params, timestep, state)
        return with_mask(policy, timestep), value, state

    def unroll(params: Params, timestep: TimeStep, state: State) -> tuple[Nest, jax.Array, State]:
        (policy, value), state = body.unroll(params, timestep, state)
        return with_mask(policy, timestep), value, state

    return ActorCriticNetwork(distribution, body.init, body.initial_state, step, unroll)


def make_q_network(
    config: NetworkConfig,
    env_spec: EnvironmentSpec,
    actions: distributions.Categorical,
    dueling: str | bool = False,
    num_atoms: int = 1,
    noisy: bool = False,
) -> Network:
    """Returns the network with action values as outputs, [..., num_actions].

    A distributional one has logits over the values, [..., num_actions, num_atoms].

    Args:
      config: settings of the network.
      env_spec: spec of the environment.
      actions: distribution of the environment's action.
      dueling: a state value plus advantages less their mean (Wang et al. 2016,
        https://arxiv.org/abs/1511.06581, equation 9). "streams": each has its own last hidden
        layer, instead of the torso's, or after the core as in R2D2; "heads": they share it.
      num_atoms: 1 for values; more for distributions over them.
      noisy: make all fully connected layers noisy, in torso and heads.

    Raises:
      ConfigError: it can't take the observations.
    """
    num_actions = actions.num_actions
    linear: torsos.MakeLayer = NoisyLinear if noisy else hk.Linear
    streams = dueling == "streams" and config.heads is None  # heads of one's own have no streams
    make_hidden = _make_hidden(config, env_spec, linear)

    def make_heads() -> Callable[[jax.Array], jax.Array]:
        scaled = torsos.scaled(1.0)
        head = linear(num_actions * num_atoms, w_init=scaled, name="q_head")
        value_head = linear(num_atoms, w_init=scaled, name="value_head") if dueling else None
        names = ("advantage_stream", "value_stream")
        hidden = [make_hidden(name) if streams else lambda x: x for name in names]

        def values(x: jax.Array) -> jax.Array:
            outputs = head(hidden[0](x)).reshape(-1, num_actions, num_atoms)
            if value_head is not None:
                value = value_head(hidden[1](x))[:, None]
                outputs += value - jnp.mean(outputs, axis=1, keepdims=True)
            return outputs if num_atoms > 1 else jnp.squeeze(outputs, axis=-1)

        return values

    with_last = not streams or config.core != "none"
    shape = (num_actions, num_atoms) if num_atoms > 1 else (num_actions,)
    return build(config, env_spec, actions.encode, make_heads, shape, linear, with_last)


def _make_hidden(
    config: NetworkConfig, env_spec: EnvironmentSpec, linear: torsos.MakeLayer
) -> Callable[[str], Callable[[jax.Array], jax.Array]]:
    """Returns a function that makes the last hidden layer, by name, in front of a head."""
    observation = make_inputs(env_spec, config.inputs, config.mask_actions).spec
    torso, sizes = config.torso, config.hidden_sizes
    if callable(torso):
        torso = "mlp"
    if config.core != "none":
        torso, sizes = "mlp", (config.core_size,)
    return torsos.last_layer(
        torso, sizes, config.activation, observation, linear, config.image_layout
    )


def _policy_head(
    distribution: distributions.Distribution, part: str | None = None
) -> Callable[[jax.Array], Nest]:
    """Returns the layer of the distribution's parameters; small at first, so nearly uniform.

    Args:
      distribution: the policy's distribution.
      part: the part's name if the distribution is one of a part of the action.
    """
    if isinstance(distribution, distributions.Joint):
        parts = distribution.parts

        def joint(x: jax.Array) -> tuple[Nest, ...]:
            return tuple(_policy_head(each, f"part_{i}")(x) for i, each in enumerate(parts))

        return hk.to_module(joint)(name="policy")
    small = torsos.scaled(0.01)
    if not isinstance(distribution, normals.DiagonalNormal):
        (num_logits,) = distribution.params_shape
        return hk.Linear(num_logits, w_init=small, name=part or "policy_head")

    def normal(x: jax.Array) -> normals.NormalParams:
        mean = hk.Linear(distribution.size, w_init=small, name="policy_head")(x)
        # exp(-0.5) = 0.6 of half the range: at first most actions are within the bounds.
        start = hk.initializers.Constant(-0.5)
        log_std = hk.get_parameter("log_std", (distribution.size,), init=start)
        log_std = normals.clip_with_return(log_std, normals.MIN_LOG_STD, normals.MAX_LOG_STD)
        return normals.NormalParams(mean, jnp.broadcast_to(log_std, mean.shape))

    return hk.to_module(normal)(name=part or "policy")
