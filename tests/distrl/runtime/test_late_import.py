"""Modules that are imported at their first use, and those that are hidden for a while."""

import sys

import pytest

from distrl.runtime.late_import import imported_late, without


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes the module `costly_part`, which can be imported."""
    (tmp_path / "costly_part.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "costly_part"
    sys.modules.pop("costly_part", None)


def test_it_is_imported_when_an_attribute_is_asked_for(module):
    with imported_late(module, known=1):
        import costly_part as late
    assert module not in sys.modules
    assert late.known == 1
    assert module not in sys.modules
    assert late.VALUE == 3
    assert sys.modules[module].VALUE == 3
    with pytest.raises(AttributeError, match="nothing"):
        late.nothing  # noqa: B018
    with imported_late(module):
        import costly_part as now
    assert now is sys.modules[module]


def test_rlax_leaves_distrax_out():
    from distrl.agents.losses.rlax_import import rlax

    assert rlax.IDENTITY_PAIR.apply(2.0) == 2.0
    distrax = rlax._src.distributions.distrax
    assert distrax.Categorical.__name__ == "Categorical"


def test_a_module_is_hidden_only_meanwhile(module, monkeypatch):
    with without(module), pytest.raises(ImportError):
        import costly_part  # noqa: F401
    assert module not in sys.modules
    monkeypatch.setitem(sys.modules, module, sys)
    with without(module):
        import costly_part as hidden
    assert hidden is sys
