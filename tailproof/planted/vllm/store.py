"""Faults of what the store connector saves after a prompt; they wait for the store tier."""

from __future__ import annotations

from tailproof.planted.vllm.edits import becomes, kept, less, part
from tailproof.planted.vllm.mutant import TAILS, TRANSFERS, SystemMutant
from tailproof.planted.vllm.shape import augmented, binary, boolean, call, named

_PUTS = "_partial_tail_non_mamba_puts"
_REQUEST = "ReqMeta.from_request_tracker"

MUTANTS = (
    SystemMutant(
        "tail-saved-without-proof",
        "The tail that is saved ends at the checkpoint, without the proof past it.",
        TAILS,
        _PUTS,
        binary("+", named("boundary")),
        kept("left"),
        ("TS1",),
        tier="store",
    ),
    SystemMutant(
        "tail-saved-from-checkpoint",
        "The tail that is saved begins at the checkpoint, so that what lies before it is missing.",
        TAILS,
        _PUTS,
        binary("*", binary("//", named("boundary"))),
        becomes("boundary"),
        ("TS1", "TS7"),
        tier="store",
    ),
    SystemMutant(
        "tail-checkpoint-without-drop",
        "The tail is saved for the checkpoint of a model that drops nothing.",
        TAILS,
        _PUTS,
        call("get_mamba_prefill_checkpoint_position"),
        part("args", 2, edit=becomes("False")),
        ("TS1",),
        tier="store",
    ),
    SystemMutant(
        "tail-saved-again",
        "The tail of a prompt is saved again in every later step.",
        TRANSFERS,
        _REQUEST,
        augmented("partial_tail_sent", "|"),
        part("value", edit=becomes("False")),
        (),
        equivalent=(
            "the worker asks the store first and puts only what is missing; that a tail which the store lost "
            "is put again breaks no rule"
        ),
        tier="store",
    ),
    SystemMutant(
        "tail-saved-before-end",
        "The tail is saved before the prompt is computed to its end.",
        TRANSFERS,
        _REQUEST,
        boolean("and", 4),
        less(3),
        ("TS2", "TS7", "LV1"),
        tier="store",
    ),
)
