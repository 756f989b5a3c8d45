"""The textbook service: FastAPI, a connection pool, and one table claimed with SKIP LOCKED. Run by uvicorn or Granian.

BENCH_DATABASE_URL=... uvicorn bench.web.textbook:app
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of the routes.

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from fastapi import FastAPI, HTTPException
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel

TABLE = "bench.textbook"
CREATE = (
    f"create table {TABLE} (id bigint generated always as identity primary key, payload jsonb not null,"
    " attempts int not null default 0, created_at timestamptz not null default now(),"
    " visible_at timestamptz not null default now())"
)
INDEX = f"create index on {TABLE} (visible_at)"
POOL = 20
_INSERT = f"insert into {TABLE} (payload) values (%s) returning id"
_INSERT_MANY = f"insert into {TABLE} (payload) select * from unnest(%s::jsonb[]) returning id"
_CLAIM = (
    f"update {TABLE} m set visible_at = now() + interval '30 seconds', attempts = attempts + 1"
    f" where id in (select id from {TABLE} where visible_at <= now() order by id limit %s for update skip locked)"
    " returning id, payload, attempts, created_at"
)
_ACK = f"delete from {TABLE} where id = any(%s) returning id"

pool: AsyncConnectionPool[psycopg.AsyncConnection[dict[str, Any]]] = AsyncConnectionPool(
    os.environ.get("BENCH_DATABASE_URL", ""),
    min_size=POOL,
    max_size=POOL,
    kwargs={"autocommit": True, "row_factory": dict_row},
    open=False,
)


@asynccontextmanager
async def _life(_: FastAPI) -> AsyncIterator[None]:
    async with pool:
        yield


app = FastAPI(lifespan=_life)


class Message(BaseModel):
    payload: Any


class Claim(BaseModel):
    limit: int = 1


class Ack(BaseModel):
    ids: list[int]


async def _rows(query: str, *values: Any) -> list[dict[str, Any]]:
    async with pool.connection() as conn:
        return await (await conn.execute(query.encode(), values)).fetchall()


@app.get("/healthz")
async def nothing() -> dict[str, bool]:
    return {"success": True}


@app.post("/messages", status_code=201)
async def publish(message: Message) -> dict[str, int]:
    return {"id": (await _rows(_INSERT, Jsonb(message.payload)))[0]["id"]}


@app.post("/batches", status_code=201)
async def publish_many(messages: list[Message]) -> dict[str, list[int]]:
    rows = await _rows(_INSERT_MANY, [Jsonb(message.payload) for message in messages])
    return {"ids": [row["id"] for row in rows]}


@app.post("/claims")
async def claim(body: Claim) -> dict[str, list[dict[str, Any]]]:
    return {"messages": await _rows(_CLAIM, body.limit)}


@app.post("/acks")
async def ack(body: Ack) -> dict[str, int]:
    done = await _rows(_ACK, body.ids)
    if len(done) < len(body.ids):
        raise HTTPException(409, "some messages do not exist")
    return {"acked": len(done)}
