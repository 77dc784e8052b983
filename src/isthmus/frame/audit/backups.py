"""The files that a rotated audit log leaves behind: their names, and which are deleted when.

Named as kube-apiserver names its own: ``audit-2006-01-02T15-04-05.000.log`` beside ``audit.log``.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_DAY_S = 86400.0
_STAMP = r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}\.\d{3}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backups:
    """How many old files to keep and for how long; 0 is without end."""

    most: int = 0
    max_age_days: int = 0

    def move(self, path: Path, *, now: float) -> Path:
        """Move the file out of the way, never over another one; gives its new name."""
        while (name := _named(path, now)).exists():
            now += 0.001
        os.rename(path, name)
        return name

    def prune(self, path: Path, *, now: float) -> None:
        """Delete the oldest beyond the number, and those that are too old."""
        names = self.found(path)
        doomed = names[: max(0, len(names) - self.most)] if self.most else []
        if self.max_age_days:
            oldest = _named(path, now - self.max_age_days * _DAY_S).name
            doomed += [name for name in names if name.name < oldest]
        for name in dict.fromkeys(doomed):
            # Somebody else may have been quicker, and one that stays is no reason to stop.
            with contextlib.suppress(OSError):
                name.unlink()

    def found(self, path: Path) -> list[Path]:
        """The old files of this log, oldest first; only names that ``move`` gives."""
        pattern = re.compile(rf"{re.escape(path.stem)}-{_STAMP}{re.escape(path.suffix)}", re.ASCII)
        with contextlib.suppress(OSError):
            return sorted(it for it in path.parent.iterdir() if pattern.fullmatch(it.name))
        return []


def _named(path: Path, now: float) -> Path:
    at = datetime.fromtimestamp(now, UTC)
    stamp = f"{at:%Y-%m-%dT%H-%M-%S}.{at.microsecond // 1000:03d}"
    return path.with_name(f"{path.stem}-{stamp}{path.suffix}")
