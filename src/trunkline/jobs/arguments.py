"""The arguments of a job: from the signature of its function to JSON and back, checked both ways."""

from __future__ import annotations

import inspect
import math
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from trunkline.jobs.refusals import InvalidArguments

_CONTEXTS = "trunkline.jobs.context"


def _enc_hook(value: Any) -> Any:
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")


def _dec_hook(kind: Any, value: Any) -> Any:
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        validate: Callable[[Any], Any] = kind.model_validate  # type: ignore[attr-defined]
        return validate(value)
    raise TypeError(f"{getattr(kind, '__name__', kind)} is not a type that JSON can be decoded into")


_ENCODER = msgspec.json.Encoder(enc_hook=_enc_hook)


def to_json(value: Any) -> bytes:
    """JSON of a value; TypeError or ValueError for what has none."""
    return _ENCODER.encode(value)


def result_to_json(value: Any) -> bytes:
    """JSON of a job's result; also a ValueError for numbers that JSON does not have, which would become null."""
    encoded = to_json(value)
    if b"null" in encoded:
        _check_numbers(msgspec.to_builtins(value, enc_hook=_enc_hook))
    return encoded


def _check_numbers(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON has no number {value}")
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return
    for inner in value:
        _check_numbers(inner)


def from_json(payload: bytes, kind: Any = None) -> Any:
    return msgspec.json.decode(payload) if kind is None else msgspec.json.decode(payload, type=kind, dec_hook=_dec_hook)


def parameters(function: Callable[..., Any], names: Mapping[str, Any]) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    """The parameters of a function and what their annotations mean; `names` are those of the place where it is defined."""
    try:
        hints = typing.get_type_hints(function, localns=dict(names))
    except NameError as exc:
        raise TypeError(
            f"the annotations of {function.__qualname__} name {exc.name!r}, which is not known where it is defined"
        ) from None
    return list(inspect.signature(function).parameters.values()), hints


def wants_context(hint: Any) -> bool:
    """Whether a parameter with this annotation is for the context."""
    return isinstance(hint, type) and hint.__module__ == _CONTEXTS


class Arguments:
    """Named arguments as one JSON object; or, with `whole`, one argument that is the whole body."""

    def __init__(
        self, kind: str, fields: list[tuple[str, Any, Any]], *, keywords: int = 0, whole: Any = msgspec.UNSET
    ) -> None:
        self.kind = kind
        self.names = tuple(name for name, _, _ in fields)
        self._keywords = self.names[len(self.names) - keywords :]
        """The last of them, which can only be given by name."""
        self._positional = self.names[: len(self.names) - keywords]
        self.whole = whole is not msgspec.UNSET
        if self.whole:
            self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(whole, dec_hook=_dec_hook)
            return
        made = [
            (name, hint) if default is inspect.Parameter.empty else (name, hint, _default(default))
            for name, hint, default in fields
        ]
        self._struct: Callable[..., Any] = msgspec.defstruct("Arguments", made, kw_only=True, forbid_unknown_fields=True)
        self._decoder = msgspec.json.Decoder(self._struct, dec_hook=_dec_hook)

    @classmethod
    def of(cls, kind: str, function: Callable[..., Any], names: Mapping[str, Any]) -> tuple[Arguments, bool]:
        """From the signature; answers also whether the function wants the context first."""
        found, hints = parameters(function, names)
        first = found[0] if found else None
        context = first is not None and wants_context(hints.get(first.name))
        fields, keywords = [], 0
        for parameter in found[1:] if context else found:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise TypeError(f"job {kind!r}: the arguments of a job have names; {parameter} has none")
            keywords += parameter.kind is parameter.KEYWORD_ONLY
            fields.append((parameter.name, hints.get(parameter.name, Any), parameter.default))
        try:
            return cls(kind, fields, keywords=keywords), context
        except TypeError as exc:
            raise TypeError(f"job {kind!r}: {exc}") from exc

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """JSON of the arguments, checked as they will be when the job runs."""
        try:
            if self.whole:
                (value,) = args or (kwargs["payload"],)
            else:
                if args:
                    if len(args) > len(self._positional):
                        raise TypeError(f"takes {len(self._positional)} arguments by place, {len(args)} were given")
                    for name, given in zip(self._positional, args, strict=False):
                        if name in kwargs:
                            raise TypeError(f"got {name!r} twice")
                        kwargs[name] = given
                value = self._struct(**kwargs)
            payload = _ENCODER.encode(value)
            self._decoder.decode(payload)
        except (TypeError, ValueError, KeyError, RecursionError) as exc:
            raise InvalidArguments(f"job {self.kind!r}: {exc}", hint=self._remedy()) from exc
        return payload

    def _remedy(self) -> str:
        return "give the payload that it takes" if self.whole else f"it takes {', '.join(self.names) or 'no arguments'}"

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments by place and by name; `InvalidArguments` when the message does not fit."""
        try:
            value = self._decoder.decode(payload)
        except (ValueError, TypeError) as exc:
            raise InvalidArguments(
                f"job {self.kind!r}: the arguments in the message do not fit the function: {exc}",
                hint="deploy code that fits, then redrive",
            ) from exc
        if self.whole:
            return (value,), {}
        args = tuple([getattr(value, name) for name in self._positional])
        return args, {name: getattr(value, name) for name in self._keywords}


def _default(value: Any) -> Any:
    # a copy for each: what one job changes must not reach the next
    return msgspec.field(default_factory=value.copy) if isinstance(value, list | dict | set) else value
