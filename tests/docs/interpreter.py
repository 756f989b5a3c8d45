"""Runs the Python blocks of one page, like `python -m asyncio`: names stay, `await` is allowed at the top.

A separate process, because some pages set up Django, which can be done once per process. Blocks arrive as lines of JSON
on stdin; results are written to stdout in the same form.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import json
import os
import sys
import traceback
from contextlib import redirect_stdout


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    names: dict[str, object] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            request = json.loads(line)
            output, error = io.StringIO(), None
            try:
                with redirect_stdout(output):
                    _run(runner, names, "\n" * (request["line"] - 1) + request["text"], request["page"])
            except BaseException:
                error = traceback.format_exc()
            print(json.dumps({"output": output.getvalue(), "error": error}), file=answers, flush=True)


def _run(runner: asyncio.Runner, names: dict[str, object], text: str, page: str) -> None:
    code = compile(text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    answer = eval(code, names)
    if inspect.iscoroutine(answer):
        runner.run(answer)


main()
