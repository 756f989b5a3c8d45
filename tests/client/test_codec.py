"""Bodies: encoding, decoding, and refusals before anything is sent (bad inputs 99, 112 and 114)."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

import trunkline
from trunkline import Client
from trunkline.codec import InvalidBody, decoder, encode, encode_message
from trunkline.errors import InvalidValue
from trunkline.types import NewMessage

NOON = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)


@dataclasses.dataclass
class Point:
    x: int
    tags: set[str]


class Order(msgspec.Struct):
    id: int
    total: Decimal
    raw: bytes = b""
    at: datetime.datetime | None = None


class Customer(pydantic.BaseModel):
    name: str
    score: float = 0.0
    since: datetime.date = datetime.date(2026, 1, 1)


class Colour(enum.Enum):
    red = "r"


def round_trip(body: Any, type: Any = None) -> Any:
    payload, content_type = encode(body)
    return decoder(type)(payload, content_type)


@pytest.mark.parametrize(
    "body",
    [
        None,
        True,
        0,
        -(2**63),
        2**64,
        -(10**40),
        1.5,
        "",
        "ü\u2028",
        [],
        {},
        [1, [2, {"a": None}]],
        {"a": {"b": [1, "2", 3.0]}},
        b"",
        b"\0\xff",
    ],
)
def test_plain_bodies_come_back_as_they_were(body: Any) -> None:
    assert round_trip(body) == body


def test_records_come_back_as_their_type() -> None:
    order = Order(7, Decimal("1.10"), b"\0", NOON)
    assert round_trip(order, Order) == order
    assert round_trip(Point(1, {"a", "b"}), Point) == Point(1, {"a", "b"})
    customer = Customer(name="n", score=1.5)
    assert round_trip(customer, Customer) == customer
    assert round_trip([customer], list[Customer]) == [customer]
    assert round_trip({"orders": [order]}, dict[str, list[Order]]) == {"orders": [order]}


def test_what_becomes_text() -> None:
    id = UUID(int=5)
    assert round_trip({"id": id, "at": NOON, "day": NOON.date(), "colour": Colour.red}) == {
        "id": str(id),
        "at": "2026-05-01T12:00:00Z",
        "day": "2026-05-01",
        "colour": "r",
    }
    assert round_trip((1, 2)) == [1, 2]


def recursive() -> Any:
    body: dict[str, Any] = {}
    body["me"] = body
    return body


@pytest.mark.parametrize(
    ("body", "error", "place"),
    [
        (object(), TypeError, r"\$,"),
        ({"a": [1, object()]}, TypeError, r"\$\.a\[1\]"),
        ({"a": {1, 2}}, TypeError, r"set at \$\.a"),
        ({"a": frozenset()}, TypeError, r"frozenset at \$\.a"),
        ({"a": b"x"}, TypeError, r"bytes at \$\.a"),
        ({"a": Decimal("1")}, TypeError, r"Decimal at \$\.a"),
        ({"a": lambda: 1}, TypeError, r"\$\.a"),
        ({"a": (n for n in "")}, TypeError, r"\$\.a"),
        ({(1, 2): 3}, TypeError, "key of type tuple"),
        ({None: 3}, TypeError, "key of type NoneType"),
        (1j, TypeError, "complex"),
        (float("nan"), ValueError, r"nan at \$"),
        ({"deep": [{"x": float("inf")}]}, ValueError, r"inf at \$\.deep\[0\]\.x"),
        ({"at": datetime.datetime(2026, 1, 1)}, ValueError, r"zone at \$\.at"),  # noqa: DTZ001
        ({"at": datetime.time(12)}, ValueError, r"zone at \$\.at"),
        (Order(1, Decimal("NaN")), ValueError, r"\$\.total"),
        (Order(1, Decimal(1), at=datetime.datetime(2026, 1, 1)), ValueError, r"zone at \$\.at"),  # noqa: DTZ001
        (Customer(name="n", score=float("nan")), ValueError, r"nan at \$\.score"),
        ({"c": [Customer(name="n", score=float("inf"))]}, ValueError, r"inf at \$\.c\[0\]\.score"),
        (recursive(), ValueError, "contains itself"),
        ("\ud800", ValueError, "Unicode"),
        ({"a": ["ok", "\udfff"]}, ValueError, r"Unicode at \$\.a\[1\]"),
    ],
)
def test_what_json_would_bend_is_refused_with_its_place(body: Any, error: type[Exception], place: str) -> None:
    with pytest.raises(error, match=place):
        encode(body)


async def test_refused_before_any_io(kind: str) -> None:
    from tests.support import both_clients

    async with both_clients.client(kind, "postgresql://nobody@127.0.0.1:1/nothing") as mq:
        for send in (mq.publish, mq.enqueue):
            with pytest.raises(TypeError, match=r"set at \$\.a"):
                await send("t", {"a": {1}})
            with pytest.raises(TypeError, match="key must be a string"):
                await send("t", 1, key=5)
            with pytest.raises(ValueError, match="deliver_at"):
                await send("t", 1, deliver_at=datetime.datetime(2026, 1, 1))  # noqa: DTZ001
            with pytest.raises(TypeError, match="duration"):
                await send("t", 1, delay=30)
            with pytest.raises(ValueError, match=r"nan at \$\.h"):
                await send("t", 1, headers={"h": float("nan")})
            with pytest.raises(InvalidValue, match="key is not valid Unicode"):
                await send("t", 1, key="a\ud800")
            with pytest.raises(InvalidValue, match='id must be a UUID, got "7"'):
                await send("t", 1, id="7")
        with pytest.raises(TypeError, match="headers"):
            await mq.publish_many("t", [1], headers=["a"])


async def test_a_name_that_is_not_unicode_is_rejected(db: str, kind: str) -> None:
    from tests.support import both_clients

    async with both_clients.client(kind, db) as mq:
        with pytest.raises(InvalidValue, match="text is not valid Unicode"):
            await mq.topics.get("a\ud800")
        with pytest.raises(InvalidValue, match="text is not valid Unicode"):
            await mq.publish("a\ud800", 1)


def test_content_types() -> None:
    assert encode(b"x", "image/png") == (b"x", "image/png")
    assert encode({"a": 1}, "application/vnd.shop+json; v=1") == (b'{"a":1}', "application/vnd.shop+json; v=1")
    with pytest.raises(TypeError, match="encode it to bytes"):
        encode("text", "text/plain")
    assert decoder(None)(b"plain", "text/plain") == b"plain"
    assert decoder(bytes)(b"{}", "application/json") == b"{}"


def test_payloads_that_do_not_fit_the_type() -> None:
    with pytest.raises(InvalidBody, match="Order"):
        decoder(Order)(b'{"id": "x"}', "application/json")
    with pytest.raises(ValueError, match="Customer"):
        decoder(Customer)(b'{"nam": "x"}', "application/json")
    with pytest.raises(InvalidBody, match="not JSON"):
        decoder(None)(b"{", "application/json")
    with pytest.raises(InvalidBody):
        decoder(int)(b"\xff", "application/octet-stream")


def test_no_pickle_anywhere() -> None:
    for content_type in ("application/x-python-pickle", "application/pickle"):
        with pytest.raises(ValueError, match="is not allowed"):
            encode(pickle.dumps({}), content_type)
    offered = pickle.dumps({"a": 1})
    assert decoder(None)(offered, "application/x-python-pickle") == offered
    folder = Path(trunkline.__file__).parent
    assert not [file for file in folder.rglob("*.py") if "import pickle" in file.read_text()]


async def test_a_changed_body_is_not_what_is_delivered_again(db: str) -> None:
    async with Client(db) as mq:
        await mq.queues.create("q")
        await mq.enqueue("q", {"n": [1]})
        [first] = await mq.claim("q")
        first.body["n"].append(2)
        assert first.body == {"n": [1, 2]}
        assert first.payload == b'{"n":[1]}'
        await first.nack(delay="0s")
        [again] = await mq.claim("q")
        assert again.body == {"n": [1]}
        with pytest.raises(AttributeError):
            again.attempt = 5  # type: ignore[misc]


def test_times_beyond_the_last_year_are_refused() -> None:
    west = datetime.timezone(-datetime.timedelta(hours=5))
    last = datetime.datetime(9999, 12, 31, 23, tzinfo=west)
    with pytest.raises(ValueError, match="occurred_at must be in the years 1 to 9999"):
        encode_message(NewMessage(body=1, occurred_at=last))
    assert encode_message(NewMessage(body=1, occurred_at=last.replace(tzinfo=datetime.UTC))).occurred_at is not None
