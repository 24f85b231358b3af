"""Tasks: one row of a dataset, and the verdict on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from gymbox_sandbox.responses import ResponsesParams

HIDDEN = ("verifier_metadata", "gold_replies", "gold_judgements")
"""Row fields that the agent's side never sees, in any environment."""


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
    """What `verify` found: a finite reward, free numeric metrics, and named parts of the reward."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reward: FiniteFloat
    metrics: dict[str, FiniteFloat] = Field(default_factory=dict)
    reward_components: dict[str, FiniteFloat] = Field(default_factory=dict)
