"""Values that are quickly made (types/value.py) beside the same frozen dataclasses: nothing but how they are made differs."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import pickle
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import outrider
from outrider.errors import InvalidRequest
from outrider.types.tree import Verdict
from outrider.types.value import quickly_made


def made(how: Callable[[type], type]) -> Any:
    """A class with every kind of field."""

    @dataclass(frozen=True, slots=True)
    class Value:
        """Of whatever."""

        first: int
        second: str = "two"
        many: list[int] = field(default_factory=list, compare=False)
        last: float = field(default=0.5, kw_only=True)
        length: int = field(init=False, default=0)

    return how(Value)


Slow, Quick = made(lambda frozen: frozen), made(quickly_made)


@quickly_made
@dataclass(frozen=True, slots=True)
class Positive:
    """Refuses some."""

    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise InvalidRequest("number", "is not positive")


@pytest.mark.parametrize(("given", "named"), [((1,), {}), ((1, "b"), {"last": 2.0}), ((), {"first": 3, "many": [4]}), ((1, "b", [7]), {})])
def test_it_is_made_as_its_frozen_twin(given: tuple[Any, ...], named: dict[str, Any]) -> None:
    slow, quick = Slow(*given, **named), Quick(*given, **named)
    assert repr(slow) == repr(quick)
    assert dataclasses.astuple(slow) == dataclasses.astuple(quick)
    assert repr(dataclasses.replace(slow, first=9)) == repr(dataclasses.replace(quick, first=9))


@pytest.mark.parametrize(("given", "named"), [((), {}), ((1, "b", [], 2.0), {}), ((1,), {"length": 3}), ((1,), {"none": 3})])
def test_what_its_twin_refuses_it_refuses(given: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Slow(*given, **named)
    with pytest.raises(TypeError):
        Quick(*given, **named)


def test_equality_hash_and_copies_are_those_of_a_value() -> None:
    one, same, other = Quick(1, "b", [1]), Quick(1, "b", [2]), Quick(2, "b", [1])
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert len({one, same, other}) == 2
    assert repr(copy.deepcopy(one)) == repr(one)
    verdict = Verdict((0, 1), 7, bonus=True)
    assert pickle.loads(pickle.dumps(verdict)) == verdict
    assert Quick(1).many is not Quick(1).many


def test_a_check_of_its_own_still_runs() -> None:
    assert Positive(1).number == 1
    with pytest.raises(InvalidRequest):
        Positive(0)


def test_it_has_no_room_for_other_fields() -> None:
    with pytest.raises(AttributeError):
        Quick(1).other = 2


def quickly_made_classes() -> list[Any]:
    """Of the modules that the services are made of, but for those that talk to somebody. (Not of the garbage collector's objects: a service
    that was started in this process has frozen them.)"""
    found: list[Any] = []
    for module in pkgutil.walk_packages(outrider.__path__, "outrider."):
        if module.name.startswith(("outrider.types", "outrider.session", "outrider.drafting.contract", "outrider.engine.acceptance")):
            found += [each for each in vars(importlib.import_module(module.name)).values() if isinstance(each, type)]
    values = [each for each in found if "__dataclass_params__" in vars(each)]
    return [each for each in values if each.__dataclass_params__.frozen and each.__setattr__ is object.__setattr__]


def test_what_the_services_make_so_can_be_told_apart_by_its_fields_alone() -> None:
    classes = quickly_made_classes()
    assert {"DraftTree", "Verdict", "SequenceRows", "StepResult", "RoundPlanned", "Tail", "Commit"} <= {each.__name__ for each in classes}
    for each in classes:
        assert not hasattr(each, "__dict__") or "__dict__" not in each.__dict__, each
        assert [*each.__slots__] == [one.name for one in dataclasses.fields(each)]
