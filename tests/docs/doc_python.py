"""Runs a Python block of a page: what is given to it, then itself, with await wherever it likes.

``stack`` is an AsyncExitStack for what the block is given. Started on a machine as
``doc_python.py FILE``.
"""

from __future__ import annotations

import ast
import asyncio
import sys
from contextlib import AsyncExitStack
from inspect import isawaitable
from pathlib import Path
from types import CodeType, FunctionType


def code_of(text: str, name: str) -> CodeType:
    """Compile a block; await is allowed outside of functions."""
    found = compile(text, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(found, CodeType)
    return found


async def main(path: Path) -> None:
    """Run the file."""
    async with AsyncExitStack() as stack:
        names = {"stack": stack, "__name__": "page"}
        running = FunctionType(code_of(path.read_text("utf-8"), path.name), names)()
        if isawaitable(running):
            await running


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
