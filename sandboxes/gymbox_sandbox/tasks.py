"""Tasks: one row of a dataset, and the verdict on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from gymbox_sandbox.responses import ResponsesParams

HIDDEN = ("verifier_metadata", "gold_replies", "gold_judgements")
"""Row fields that the agent's side never sees, in any environment."""

LARGEST = 1e100
"""Of a reward or a metric, up or down: with larger ones a mean or a spread would no longer be a number."""
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
"""One that can be counted with."""


class Task(BaseModel):
    """One row of the dataset.

    `reset` gets it without `verifier_metadata` and without the manifest's `hidden_fields`; only `verify` sees those.
    Free top-level fields of the row are attributes (`task.initial_count`).
    """

    model_config = ConfigDict(extra="allow")

    id: str = ""
    responses_create_params: ResponsesParams = Field(default_factory=ResponsesParams)
    verifier_metadata: dict[str, Any] = Field(default_factory=dict)

    if TYPE_CHECKING:  # the row's free fields

        def __getattr__(self, name: str) -> Any: ...


class Verdict(BaseModel):
    """What `verify` found: a finite reward, free numeric metrics, and named parts of the reward, none beyond 1e100."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reward: Number
    metrics: dict[str, Number] = Field(default_factory=dict)
    reward_components: dict[str, Number] = Field(default_factory=dict)
