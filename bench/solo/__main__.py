"""`python -m bench.solo NAME ACTION OPTIONS`: run one contestant in one process.

DATABASE_URL is the database, OPTIONS is JSON, and the result is one line of JSON on stdout.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys

import msgspec

from bench.solo.contract import ACTIONS, Contestant, Options


async def _main(name: str, action: str, options: Options) -> None:
    url = os.environ["DATABASE_URL"]
    contestant: Contestant = importlib.import_module(f"bench.solo.with_{name}").make(url)
    async with contestant:
        result = await ACTIONS[action](contestant, url, options)
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], msgspec.json.decode(sys.argv[3], type=Options)))
