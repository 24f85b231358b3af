"""Inputs: what a run's results depend on, as manifests have it, compared where a run is gone on with.

Manifests hold every field of a component, so one that was written by another version may lack fields, or have some
that this version leaves out. Such a field is no change as long as its value is the one that it has by itself.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import reduce
from typing import Any, cast, get_args, get_origin

from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo

Kinds = Collection[type[BaseModel]]
TARGET = "_target_"
"""Where a component says of which class it is."""
_RUNNER = "gymbox.runner_settings.RunnerSettings"
_NONE = object()


def levelled(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both without the fields that only one of them has, with the value that the field has by default.

    Classes of others' packages are known where they are in use; of others, each field counts.
    """
    if before == now:
        return dict(before), dict(now)
    left, right = _level(dict(before), dict(now), ())
    if isinstance(left.get("runner"), dict) and isinstance(right.get("runner"), dict):
        left["runner"], right["runner"] = _level(left["runner"], right["runner"], _named(_RUNNER))
    return left, right


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs, a line each; a name that one lacks has None there."""
    old, new = _flat(before), _flat(now)
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return "\n".join(f"  {name}: was {old.get(name)!r:.80}, is {new.get(name)!r:.80}" for name in names)


def _level(one: Any, other: Any, kinds: Kinds) -> tuple[Any, Any]:
    """`kinds`: the classes of which they may be."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [_level(*pair, kinds) for pair in zip(one, other, strict=True)]
        return [left for left, _ in pairs], [right for _, right in pairs]
    if not isinstance(one, dict) or not isinstance(other, dict):
        return one, other
    if TARGET in one and one[TARGET] == other.get(TARGET):
        kinds = _named(one[TARGET])
    left, right = dict(one), dict(other)
    for name in {**one, **other}:
        fields = [kind.model_fields[name] for kind in kinds if name in kind.model_fields]
        if name in one and name in other:
            inner = [kind for field in fields for kind in _models_in(field.annotation)]
            left[name], right[name] = _level(one[name], other[name], inner)
        elif fields:
            having = left if name in one else right
            if all(_default(name, field) == having[name] for field in fields):
                del having[name]
    return left, right


def _named(target: Any) -> Kinds:
    """The class of that name, if it is a model. Of modules that are not in use only gymbox's own are imported, for
    the name may be of a file that anyone has made."""
    names = target.split(".") if isinstance(target, str) else []
    if names[:1] == ["gymbox"]:
        with suppress(ImportError):
            importlib.import_module(".".join(names[:-1]))
    for cut in range(len(names) - 1, 0, -1):
        if (module := sys.modules.get(".".join(names[:cut]))) is not None:
            found = reduce(lambda holder, name: getattr(holder, name, None), names[cut:], cast(Any, module))
            return (found,) if isinstance(found, type) and issubclass(found, BaseModel) else ()
    return ()


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models of which the values of a field may be, or what it lists."""
    origin = get_origin(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif not (isinstance(origin, type) and issubclass(origin, Mapping)):
        for part in get_args(annotation):
            yield from _models_in(part)


def _default(name: str, field: FieldInfo) -> Any:
    """As a manifest has it; where there is none, what equals nothing."""
    if field.is_required():
        return _NONE
    fields: Any = {name: (field.annotation, field)}
    alone = create_model("Alone", __config__={"arbitrary_types_allowed": True}, **fields)
    try:
        return alone().model_dump(mode="json")[name]
    except (ValueError, TypeError):
        return _NONE


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        if isinstance(inner, dict):
            flat |= _flat(inner, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = inner
    return flat
