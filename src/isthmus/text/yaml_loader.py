"""A loader of YAML that reads two things as YAML 1.2 and Go's do, and PyYAML does not.

Whoever checks a file for another program must not be of another mind than that program.
"""

from __future__ import annotations

import yaml

_BLANK = "\0 \t\r\n\x85\u2028\u2029"


class Loader(yaml.SafeLoader):
    """Takes tabs between words, and wants a space behind a colon."""

    def scan_to_next_token(self) -> None:
        """Take tabs as well (§6.2); one that indents is an error still, but in brackets."""
        super().scan_to_next_token()
        while self.peek() == "\t" and (self.flow_level or not self.allow_simple_key):
            self.forward()
            super().scan_to_next_token()

    def check_value(self) -> bool:
        """Want a space behind a colon, also in brackets, unless the key is in quotes (§7.4.2).

        Raises:
            yaml.YAMLError: there is none.
        """
        last = self.tokens[-1] if self.flow_level and self.tokens else None
        plain = isinstance(last, yaml.ScalarToken) and last.plain
        if plain and self.peek(1) not in _BLANK:
            what = "a space is missing behind the colon"
            raise yaml.scanner.ScannerError(None, None, what, self.get_mark())
        return bool(super().check_value())
