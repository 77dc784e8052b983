"""Phrases that nobody uses in technical English; the rules are those of CONTRIBUTING."""

from __future__ import annotations

import re

#: In any text: help, errors, logs, docstrings and comments. "so that" is fine.
ANYWHERE = (
    r"\b(?:of|than) (?:ours|theirs)\b",
    r"\b(?:to|for|by|from|with|as) who\b(?! may\b)",
    r"\b(?:is|are) said\b",
    r"\blet (?:it|them|there) be\b",
)
#: In pages, where what is quoted and code do not count.
IN_PAGES = (
    *ANYWHERE,
    r"\bas ours\b",
    r"\bafter who (?!may\b)",
    r"\bso many (?!as\b|that\b)[a-z]",  # carry so many connections
    r"\bwas said\b",
    r"\b(?:call|named|called) (?:\S+ ){1,3}so\b",  # call this server so
    r"\bis not here\b",
    r"\bcannot do without\b",
    r"\bmay still not be meant\b",
    r"\bsays? nonsense\b",
    r"\bin so many words\b",
    r"\bhow (?:it|they|programs|the \w+) (?:is|are)(?=[.,;]|$)",  # how the programs are
    r"\bby this(?=[.,;]|$)",  # tell traffic by this
    r"\b(?:is|are) held (?:to|against)\b",
    r"\b(?:is|are) (?:made|started|written) anew\b",
)
#: In the help of a flag, which is short.
IN_HELP = (
    *ANYWHERE,
    r"\bso\b(?! that\b)",
    r"(?<!the )\bone that\b",
    r"\bnot here\b",
    r"\blet be\b",
    r"\bhow .* (?:is|are)$",
    r"\bthis(?: for\b| as\b|[;,:]|$)",
    r"\bare none\b",
)
#: In docstrings, comments and messages, which may be longer than a line.
IN_PROSE = (
    *ANYWHERE,
    r"\bcall (?:this|it) \w+ so\b",
    r"\bso (?:many|much) (?:in a|at the)\b",
    r"\b(?:any|every|no|some)body\b",
    r"\bwhoever\b",
    r"\bnonsense\b",
    r"\bmakes? no sense\b",
    r"\bcannot do without\b",
    r"\bwhat is not wrong\b",
    r"\bmay still not be meant\b",
    r"\b(?:it|that|which|what) is no\b(?! longer)",
    r"\bone sentence\b",
    r"\bas ever\b",
    r"\bat the most\b",
    r"\bagain and again\b",
    r"\b(?:take|taken|took|takes) (?:it|that|them) back\b",
    r"\btaken back\b",
    r"\bwith(?:out)? a word\b",
    r"\bhears? (?:of|that|when|every|each|likewise)\b",
    r"Kubernetes'(?!s)",
)


def pattern(phrases: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(phrases), re.IGNORECASE)
