"""Classes by value are pytrees of JAX where they are loaded, as where they were made."""

import dataclasses
import json
import pickle
import subprocess
import sys
from typing import Any, NamedTuple

import cloudpickle
import jax
import pytest

from distrl.launch.python import pickling
from distrl.saved import by_value, saved_agent


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Known:
    """A pytree of a data field and a meta field."""

    data: Any
    meta: str = dataclasses.field(default="meta", metadata={"static": True})


@dataclasses.dataclass
class Unknown:
    data: Any


class Pair(NamedTuple):
    data: Any


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class Doubled:
    """A pytree by functions of its own, which JAX does not tell."""

    data: Any

    def tree_flatten(self) -> Any:
        return (self.data, self.data), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Any) -> "Doubled":
        return cls(children[0])


LOAD = """
import json, pickle, sys, jax
made = [make() for make in pickle.load(sys.stdin.buffer)]
for value in made:
    value = jax.tree.map(lambda x: x + 1, value)  # it is rebuilt
print(json.dumps([str(jax.tree_util.tree_flatten_with_path(value)) for value in made]))
"""


@pytest.fixture
def this_module_by_value():
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


def _loaded_elsewhere(data: bytes) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOAD], input=data, stdout=subprocess.PIPE, timeout=100, check=True
    )
    return list(json.loads(done.stdout))


def _makers() -> list[Any]:
    makers = [lambda: Known(3), lambda: Known({"a": 3, "b": [4, 5]}, "other"), lambda: Pair(3)]
    try:
        import flax.struct
    except ImportError:
        return makers

    @flax.struct.dataclass
    class Struct:
        first: Any
        size: int = flax.struct.field(pytree_node=False, default=2)
        last: Any = 7

    return [*makers, lambda: Struct(3)]


@pytest.mark.parametrize("dumps", [by_value.dumps, saved_agent.pickled, pickling.dumps])
def test_dataclasses_stay_pytrees(dumps: Any, this_module_by_value: None):
    makers = _makers()
    here = [str(jax.tree_util.tree_flatten_with_path(make())) for make in makers]
    assert _loaded_elsewhere(dumps(makers)) == here
    assert len(jax.tree.leaves(makers[1]())) == 3


def test_classes_that_are_loaded_where_they_were_made_stay_the_same(this_module_by_value: None):
    data = by_value.dumps((Known, Doubled, Unknown, Pair))
    assert pickle.loads(data) == (Known, Doubled, Unknown, Pair)


@pytest.mark.parametrize("cls", [Doubled, Unknown, Pair, int])
def test_only_dataclasses_are_registered_again(cls: type):
    assert by_value._registered_fields(cls) is None
    assert by_value._registered_fields(Known) == (["data"], ["meta"])
