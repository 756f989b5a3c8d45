"""Job arguments: encoded to JSON and decoded by the function's signature, with validation both ways."""

from __future__ import annotations

import inspect
import math
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from trunkline.errors import InvalidType, InvalidValue
from trunkline.jobs.errors import InvalidArguments


class JobContext:
    """Base of the contexts: a handler whose first parameter is annotated with a subclass receives the context."""

    __slots__ = ()


def _enc_hook(value: Any) -> Any:
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json")
    raise InvalidType(f"{type(value).__name__} cannot be sent as JSON")


def _dec_hook(kind: Any, value: Any) -> Any:
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        validate: Callable[[Any], Any] = kind.model_validate  # type: ignore[attr-defined]
        return validate(value)
    raise InvalidType(f"{getattr(kind, '__name__', kind)} is not a type that JSON can be decoded into")


def _schema_hook(kind: type) -> dict[str, Any]:
    schema = getattr(kind, "model_json_schema", None)  # a Pydantic model
    if schema is None:
        raise NotImplementedError
    made: dict[str, Any] = schema()
    return made


_ENCODER = msgspec.json.Encoder(enc_hook=_enc_hook)


def to_json(value: Any) -> bytes:
    """Encode a value as JSON. Raises `InvalidArgument`, or what a Pydantic model raises."""
    return _ENCODER.encode(value)


def result_to_json(value: Any) -> bytes:
    """Encode a job's result as JSON. Raises ValueError for NaN and infinity, which would become null."""
    encoded = to_json(value)
    if b"null" in encoded:
        _check_numbers(msgspec.to_builtins(value, enc_hook=_enc_hook))
    return encoded


def _check_numbers(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidValue(f"{value} cannot be represented in JSON")
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return
    for inner in value:
        _check_numbers(inner)


def from_json(payload: bytes, kind: Any = None) -> Any:
    return msgspec.json.decode(payload) if kind is None else msgspec.json.decode(payload, type=kind, dec_hook=_dec_hook)


def parameters(function: Callable[..., Any], names: Mapping[str, Any]) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    """Return a function's parameters and resolved annotations. `names` is the namespace in which it is defined."""
    try:
        hints = typing.get_type_hints(function, localns=dict(names))
    except NameError as exc:
        raise InvalidType(
            f"the annotations of {function.__qualname__} use {exc.name!r}, which is not defined where the function is"
        ) from None
    return list(inspect.signature(function).parameters.values()), hints


def wants_context(hint: Any) -> bool:
    """Return whether a parameter with this annotation receives the context."""
    return isinstance(hint, type) and issubclass(hint, JobContext)


class Arguments:
    """Encodes named arguments as one JSON object or, with `whole`, one argument as the whole body."""

    def __init__(
        self, kind: str, fields: list[tuple[str, Any, Any]], *, keywords: int = 0, whole: Any = msgspec.UNSET
    ) -> None:
        self.kind = kind
        self.names = tuple(name for name, _, _ in fields)
        self._keywords = self.names[len(self.names) - keywords :]
        """Keyword-only arguments, which come last."""
        self._positional = self.names[: len(self.names) - keywords]
        self.whole = whole is not msgspec.UNSET
        if self.whole:
            self._whole_type = whole
            self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(whole, dec_hook=_dec_hook)
            return
        specs = [
            (name, hint) if default is inspect.Parameter.empty else (name, hint, _default(default))
            for name, hint, default in fields
        ]
        self._struct: Callable[..., Any] = msgspec.defstruct("Arguments", specs, kw_only=True, forbid_unknown_fields=True)
        self._decoder = msgspec.json.Decoder(self._struct, dec_hook=_dec_hook)

    @classmethod
    def of(cls, kind: str, function: Callable[..., Any], names: Mapping[str, Any]) -> tuple[Arguments, bool]:
        """Create from a signature. Also returns whether the first parameter receives the context."""
        signature, hints = parameters(function, names)
        first = signature[0] if signature else None
        context = first is not None and wants_context(hints.get(first.name))
        fields, keywords = [], 0
        for parameter in signature[1:] if context else signature:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise InvalidType(f"job {kind!r}: parameters of a job must be named arguments, got {parameter}")
            keywords += parameter.kind is parameter.KEYWORD_ONLY
            fields.append((parameter.name, hints.get(parameter.name, Any), parameter.default))
        try:
            return cls(kind, fields, keywords=keywords), context
        except TypeError as exc:
            raise InvalidType(f"job {kind!r}: {exc}") from exc

    def schema(self) -> dict[str, Any] | None:
        """Return the JSON schema of the arguments, or None if their types have none."""
        try:
            return msgspec.json.schema(self._whole_type if self.whole else self._struct, schema_hook=_schema_hook)
        except Exception:  # a type of the application's: any error of its own schema
            return None

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Encode arguments as JSON, validated as they will be when the job runs."""
        try:
            if self.whole:
                (value,) = args or (kwargs["payload"],)
            else:
                if args:
                    if len(args) > len(self._positional):
                        raise InvalidType(f"takes {len(self._positional)} positional arguments, got {len(args)}")
                    for name, value in zip(self._positional, args, strict=False):
                        if name in kwargs:
                            raise InvalidType(f"got {name!r} twice")
                        kwargs[name] = value
                value = self._struct(**kwargs)
            payload = _ENCODER.encode(value)
            self._decoder.decode(payload)
        except (TypeError, ValueError, KeyError, RecursionError) as exc:
            raise InvalidArguments(f"job {self.kind!r}: {exc}", hint=self._hint()) from exc
        return payload

    def _hint(self) -> str:
        return "Pass the payload." if self.whole else f"The job takes {', '.join(self.names) or 'no arguments'}."

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decode positional and keyword arguments.

        Raises `InvalidArguments` if the message does not match the function.
        """
        try:
            value = self._decoder.decode(payload)
        except (ValueError, TypeError) as exc:
            raise InvalidArguments(
                f"job {self.kind!r}: the arguments in the message do not match the function: {exc}",
                hint="Deploy code that matches the message, then redrive it.",
            ) from exc
        if self.whole:
            return (value,), {}
        args = tuple([getattr(value, name) for name in self._positional])
        return args, {name: getattr(value, name) for name in self._keywords}


def _default(value: Any) -> Any:
    # a copy per call: changes in one job must not affect the next
    return msgspec.field(default_factory=value.copy) if isinstance(value, list | dict | set) else value
