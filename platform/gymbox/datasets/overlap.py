"""Overlap: rows of one file that stand in it twice, and rows of one split that another gives away."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from gymbox.datasets.sources import Source, rows_of
from gymbox.datasets.texts import exact_digest, ngrams, normalised_digest, prompt_digest, prompt_text
from gymbox.faults import Faults

Kind = Literal["exact", "normalised", "prompt"]
SHOWN = 20
"""Pairs that are named; all are counted."""
NGRAM = 8
THRESHOLD = 0.7
"""Words of an n-gram, and the share from which a row counts as given away: Chowdhery et al., "PaLM" (2022), section 8,
where a test example is contaminated if at least 70 % of its 8-grams were seen in training."""
BOILERPLATE = 10
"""An n-gram in more rows of the reference than this is left out of the share, above and below: it is a phrase that
tasks have in common. Brown et al., "Language Models are Few-Shot Learners" (2020), appendix C, do so with this
number."""


@dataclass(slots=True)
class Duplicates:
    """How many rows are the same as an earlier one, by each kind, the stricter kinds included in the wider."""

    counts: Counter[str] = field(default_factory=Counter)
    pairs: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """The first of each kind: the place of the row, and of the earlier one."""
    _seen: dict[tuple[Kind, bytes], str] = field(default_factory=dict)

    def add(self, fields: dict[str, Any], place: str) -> set[Kind]:
        """Note a row; the kinds by which it is the same as an earlier one."""
        found: set[Kind] = set()
        digests: list[tuple[Kind, bytes | None]] = [
            ("exact", exact_digest(fields)),
            ("normalised", normalised_digest(fields)),
            ("prompt", prompt_digest(fields)),
        ]
        for kind, digest in digests:
            if digest is None:
                continue
            earlier = self._seen.setdefault((kind, digest), place)
            if earlier is not place:
                found.add(kind)
                self.counts[kind] += 1
                pairs = self.pairs.setdefault(kind, [])
                if len(pairs) < SHOWN:
                    pairs.append((place, earlier))
        return found

    def as_json(self) -> dict[str, Any]:
        kinds: tuple[Kind, ...] = ("exact", "normalised", "prompt")
        return {kind: {"rows": self.counts[kind], "first": self.pairs.get(kind, [])} for kind in kinds}


@dataclass(frozen=True, slots=True)
class Contamination:
    """What rows of `evaluated` stand in `reference`, too, or nearly so."""

    evaluated: str
    reference: str
    rows: int
    """Rows of `evaluated`."""
    prompts: int
    """Of them, those whose prompt stands in the reference, normalised."""
    overlapping: int
    """Of them, those whose n-gram share is at least the threshold."""
    contaminated: int
    """Those that are one or the other."""
    too_short: int
    """Those with fewer words than an n-gram has, which only `prompts` can tell of."""
    ngram: int
    threshold: float
    first: tuple[tuple[int, float], ...]
    """Line and n-gram share of the first contaminated ones; of a same prompt the share is 1."""

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
            "formula": f"|G(row) ∩ G(reference)| / |G(row)|, G: {self.ngram}-grams of words, less those in more than "
            f"{BOILERPLATE} rows of the reference",
        }


def contamination(
    evaluated: Source, reference: Source, *, ngram: int = NGRAM, threshold: float = THRESHOLD
) -> Contamination:
    """How much of `evaluated` is given away by `reference`, such as a test set by its training set.

    share(row) = |G(row) ∩ G(reference)| / |G(row)|, where G are the different n-grams of words in what the user says,
    less boilerplate (see `BOILERPLATE`). Memory grows with `evaluated` only.

    Raises:
        ConfigError: a source cannot be read. Rows that cannot be are left out; check the files first.
    """
    lines, prompts, grams, seen_in = array("Q"), list[bytes | None](), list[array[int]](), dict[int, int]()
    for row in rows_of(evaluated, Faults()):
        lines.append(row.line)
        prompts.append(prompt_digest(row.fields))
        grams.append(ngrams(prompt_text(row.fields), ngram))
        seen_in.update(dict.fromkeys(grams[-1], 0))
    wanted = {digest for digest in prompts if digest is not None}
    same: set[bytes] = set()
    for row in rows_of(reference, Faults()):
        digest = prompt_digest(row.fields)
        if digest in wanted and digest is not None:
            same.add(digest)
        for gram in ngrams(prompt_text(row.fields), ngram):
            if gram in seen_in:
                seen_in[gram] += 1
    shares = [_share(row, seen_in) for row in grams]
    found = [
        (line, 1.0 if digest in same else round(share or 0.0, 4))
        for line, digest, share in zip(lines, prompts, shares, strict=True)
        if digest in same or (share is not None and share >= threshold)
    ]
    return Contamination(
        evaluated.name,
        reference.name,
        rows=len(lines),
        prompts=sum(digest in same for digest in prompts),
        overlapping=sum(share is not None and share >= threshold for share in shares),
        contaminated=len(found),
        too_short=sum(not row for row in grams),
        ngram=ngram,
        threshold=threshold,
        first=tuple(found[:SHOWN]),
    )


def _share(grams: array[int], seen_in: dict[int, int]) -> float | None:
    """None: no n-gram is left to judge by."""
    own = [gram for gram in grams if seen_in[gram] <= BOILERPLATE]
    return sum(seen_in[gram] > 0 for gram in own) / len(own) if own else None
