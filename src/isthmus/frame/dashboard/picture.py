"""The current state of a program from its feed: a ``full``, and the deltas after it.

isthmus dashboard keeps one for each source, to show to new viewers; the page's own script does the
same with the same events. Rows are counted at each step, and the caller checks the size of
everything now and then (``check_size``). Deltas are made in delta.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from isthmus.errors import ProtocolError
from isthmus.frame.dashboard.delta import MOVED, Json
from isthmus.frame.model.history import STEPS
from isthmus.frame.model.snapshot import camel

#: More rows than any Isthmus program sends.
MOST_ROWS = 20_000
MOST_RECORDS = 200
#: The size of everything as JSON; twenty times a full with 5,000 tunnels.
MOST_BYTES = 32 * 1024 * 1024


class Picture:
    """The state of one source after the events so far."""

    __slots__ = ("_audited", "_head", "_history", "_records", "_rows", "_snapshot")

    def __init__(self, full: Json) -> None:
        """Start with the data of a ``full`` event.

        Raises:
            ProtocolError: it is not one.
        """
        try:
            snapshot = dict(full["snapshot"])
            self._rows = {
                name: {row["id"]: dict(row) for row in snapshot[name]}
                for name in MOVED
                if name in snapshot
            }
            self._history: list[Any] = list(full["history"])
            self._audited = bool(full["audit"]["enabled"])
            self._records: list[Any] = list(full["audit"]["records"])
            self._head = {"source": full["source"], "at": full["at"]}
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise ProtocolError("invalid full event in a feed") from exc
        self._snapshot = snapshot
        self._trim()

    def apply(self, delta: Json) -> None:
        """Apply the data of a ``delta`` event.

        Raises:
            ProtocolError: it is invalid, or does not fit the state.
        """
        try:
            for name in MOVED.keys() & delta.keys():
                self._change(name, delta[name])
            self._snapshot.update(delta.get("snapshot", {}))
            self._history += delta.get("history", ())
            self._records += delta.get("audit", ())
            self._head["at"] = delta["at"]
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise ProtocolError("invalid delta event in a feed") from exc
        self._trim()

    def _change(self, name: str, change: Json) -> None:
        rows = self._rows.setdefault(name, {})
        for gone in change.get("gone", ()):
            del rows[gone]
        for row in change.get("set", ()):
            rows[row["id"]] = dict(row)
        keys = [camel(moved) for moved in MOVED[name]]
        for number, *values in change.get("moved", ()):
            rows[number].update(zip(keys, values, strict=True))

    def full(self) -> Json:
        """The data of a ``full`` event with the current state."""
        rows: dict[str, Sequence[Any]] = {
            name: list(found.values()) for name, found in self._rows.items()
        }
        audit = {"enabled": self._audited, "records": self._records}
        snapshot = {**self._snapshot, **rows}
        return {**self._head, "snapshot": snapshot, "history": self._history, "audit": audit}

    def check_size(self) -> None:
        """Check the size of everything; to be called now and then.

        Raises:
            ProtocolError: it is too large.
        """
        if len(json.dumps(self.full())) > MOST_BYTES:
            raise ProtocolError(f"a feed has grown to more than {MOST_BYTES} bytes")

    def _trim(self) -> None:
        if any(len(rows) > MOST_ROWS for rows in self._rows.values()):
            raise ProtocolError(f"a feed has more than {MOST_ROWS} tunnels or links")
        del self._history[:-STEPS], self._records[:-MOST_RECORDS]
