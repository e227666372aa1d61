"""The error about a flag that does not exist, with the names that may have been meant."""

import difflib
from collections.abc import Iterable

from absl import flags

_MOST = 3  # names that are suggested
_LIKENESS = 0.6  # least likeness of the last words of two names, from 0 to 1
_ELSEWHERE = {  # what other systems call it
    "lr": "learning_rate",
    "gamma": "discount",
    "ent_coef": "entropy_cost",
    "vf_coef": "baseline_cost",
    "max_grad_norm": "max_gradient_norm",
    "net_arch": "hidden_sizes",
    "total_timesteps": "max_env_steps",
    "num_steps": "unroll_length",
    "n_steps": "unroll_length",
    "n_envs": "num_envs",
    "num_workers": "num_actors",
    "buffer_size": "max_size",
    "learning_starts": "min_size_to_sample",
    "algo": "agent",
    "env_id": "env",
}


def with_suggestions(
    error: flags.UnrecognizedFlagError, known: Iterable[str]
) -> flags.UnrecognizedFlagError:
    """Returns the error with the names that may have been meant.

    absl compares whole names, so that all settings of an agent are like "config.agent.n_step", and
    none like "num_envs".

    Args:
      error: absl's error.
      known: names of flags.
    """
    parent, _, word = error.flagname.rpartition(".")
    words: dict[str, list[str]] = {}
    of_parent: dict[str, list[str]] = {}
    for name in sorted(known):
        known_parent, _, known_word = name.rpartition(".")
        words.setdefault(known_word, []).append(name)
        if known_parent == parent:
            of_parent.setdefault(known_word, []).append(name)
    same = [like for like in (word, _ELSEWHERE.get(word)) if like in words][:1]
    among = of_parent if parent and of_parent and not same else words
    likely = same or difflib.get_close_matches(word, among, _MOST, _LIKENESS)
    names = [name for like in likely for name in among[like]]
    shortest = min((name.count(".") for name in names), default=0)
    names = [name for name in names if name.count(".") == shortest]
    return flags.UnrecognizedFlagError(error.flagname, suggestions=names[:_MOST])
