"""Settings of the clip bound, with type, range, default and meaning; apart, since loops of one's own need no others."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from dpfedmeta.config.fields import STRICT, ClipBound, Count, Positive, Probability, explained
from dpfedmeta.core.plugins.plugin_registry import one_of


@explained("clip.")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class ClipSettings:
    """The clip bound of a client's message (C_q where records are clipped)."""

    policy: Annotated[
        str,
        one_of("dpfedmeta.privacy.clip_policies"),
        Field(description="how the bound follows past releases; package.module:name; own: an object passed in Python"),
    ] = "constant"
    initial: Annotated[ClipBound, Field(description="C_0, the clip bound of round 0")] = 0.3
    start: Annotated[
        Literal["given", "quantile"],
        Field(
            description="where C_0 comes from. given: clip.initial; quantile: a private analysis before round 0 (the "
            "share of clients is clip.quantile, epsilon 0.1), which every guarantee counts"
        ),
    ] = "given"
    window: Annotated[Count, Field(description="W, number of past noisy aggregates that the policy uses")] = 4
    percentile: Annotated[
        float, Field(ge=0, le=100, allow_inf_nan=False, description="k of the last W norms (window-literal)")
    ] = 90.0
    quantile: Annotated[Probability, Field(description="target share of unclipped clients (quantile)")] = 0.5
    rate: Annotated[Positive, Field(description="step size of the geometric update (quantile)")] = 0.2
    count_noise: Annotated[
        Positive | None, Field(description="standard deviation of the noise on counts (quantile, median); null: L/20")
    ] = None
    lowest: Annotated[ClipBound | None, Field(description="C_min, least bound; null: C_0/300")] = None
    highest: Annotated[ClipBound | None, Field(description="C_max, largest bound; null: 300 C_0")] = None
    scope: Annotated[
        Literal["flat", "per-layer"], Field(description="one bound for the message, or C/sqrt(layers) for each layer")
    ] = "flat"
    own: Annotated[Mapping[str, Any], Field(description="further arguments of your own policy")] = field(
        default_factory=dict, hash=False
    )
