"""mrv2 audit finds what is known to be wrong in the releases, and nothing else."""

from __future__ import annotations

import pytest

from mrv2_fixes import plan, series, targets
from mrv2_fixes.audit import audit
from mrv2_fixes.audit.finding import Finding, Kind
from mrv2_fixes.targets import folder

from .conftest import AFFECTED, Source

BOUND = "seq_lens_cpu_upper_bound"
MAMBA = "MambaHybridModelState.prepare_attn"
EAGLE = "EagleSpeculator._build_draft_attn_metadata"
DRAFT = "DraftModelSpeculator._build_draft_attn_metadata"
DFLASH = "_prepare_dflash_inputs_to_capture"
ENCODER_DECODER = "EncoderDecoderModelState.prepare_attn"
DIFFUSION = "DiffusionGemmaModelState.prepare_attn"

Found = set[tuple[str, Kind, str]]

UNGATED: Found = {
    (MAMBA, Kind.SPECULATIVE, "num_accepted_tokens"),
    (MAMBA, Kind.SPECULATIVE, "num_decode_draft_tokens_cpu"),
}
HYBRID: Found = {*UNGATED, (MAMBA, Kind.BOUND, BOUND)}
LONGEST: Found = {(MAMBA, Kind.OVER, "max_seq_len"), (EAGLE, Kind.OVER, "max_seq_len")}
OF_EAGLE: Found = {*HYBRID, *LONGEST, (EAGLE, Kind.BOUND, BOUND)}
OF_DRAFT: Found = {(DRAFT, Kind.BOUND, BOUND)}
OF_DFLASH: Found = {(DFLASH, Kind.BOUND, BOUND)}
# What the runner of each release does wrong, beside the fields that a model state drops.
KNOWN: dict[str, Found] = {
    "0.21.0": OF_EAGLE,
    "0.22.0": OF_EAGLE,
    "0.22.1": OF_EAGLE,
    "0.23.0": {*HYBRID, *OF_DRAFT},
    "0.24.0": {*HYBRID, *OF_DRAFT, *OF_DFLASH},
    "0.25.0": {*OF_DRAFT, *OF_DFLASH},
    "0.25.1": {*OF_DRAFT, *OF_DFLASH},
    "0.26.0": {*OF_DRAFT, *OF_DFLASH},
    "0.27.0": OF_DFLASH,
    "0.27.1": OF_DFLASH,
    "0.28.0": OF_DFLASH,
    "0.29.0": OF_DFLASH,
    "0.30.0": OF_DFLASH,
    "0.31.0": {
        *OF_DFLASH,
        ("PlainDraftModelSpeculator", Kind.ONCE, "draft_max_seq_len"),
    },
    "0.32.0": {
        *OF_DFLASH,
        ("StandaloneARSpeculator", Kind.ONCE, "draft_max_seq_len"),
    },
    "0.33.0": {
        *OF_DFLASH,
        ("StandaloneARSpeculator", Kind.ONCE, "draft_max_seq_len"),
    },
}
DROPPED = {
    "0.22.1": {MAMBA: {"positions"}, "WhisperModelState.prepare_attn": {"positions"}},
    "0.25.1": {MAMBA: {"positions", "mm_req_doc_ranges"}, ENCODER_DECODER: {"positions"}},
    "0.26.0": {
        MAMBA: {"positions", "mm_req_doc_ranges"},
        ENCODER_DECODER: {"positions", "is_prefilling"},
    },
    "0.32.0": {
        MAMBA: {
            *("mm_req_doc_ranges", "dcp_local_seq_lens_cpu_upper_bound"),
            *("req_idx", "fast_prefill"),
        },
        ENCODER_DECODER: {"positions", "is_prefilling", "fast_prefill"},
    },
}


def told(findings: list[Finding]) -> Found:
    """The findings without the fields that are dropped."""
    return {(one.symbol, one.kind, one.field) for one in findings if one.kind is not Kind.DROPPED}


def dropped(findings: list[Finding]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in findings:
        if one.kind is Kind.DROPPED:
            found.setdefault(one.symbol, set()).add(one.field)
    return found


@pytest.mark.releases
@pytest.mark.parametrize("release", KNOWN)
def test_what_is_known_to_be_wrong_in_a_release_is_found_and_nothing_else(
    release: str, published: Source
) -> None:
    findings = audit(folder.read(published(release)).files)
    assert told(findings) == KNOWN[release]
    if release in DROPPED:
        assert dropped(findings) == DROPPED[release]


@pytest.mark.releases
@pytest.mark.parametrize("release", AFFECTED)
def test_the_core_of_the_series_takes_out_its_own_findings_and_brings_none(
    release: str, published: Source
) -> None:
    files = dict(folder.read(published(release)).files)
    made = plan.make(series.load().core, files)
    before, after = told(audit(files)), told(audit({**files, **made.after}))
    assert before - after == before & {*HYBRID, *LONGEST}
    assert after <= before


@pytest.mark.releases
def test_a_model_file_that_makes_its_own_metadata_is_audited_too_in_a_wheel() -> None:
    findings = audit(targets.open_target("0.24.0", print).files)
    assert told(findings) - KNOWN["0.24.0"] == {
        (DIFFUSION, Kind.BOUND, BOUND),
        (DIFFUSION, Kind.OVER, "max_seq_len"),
    }
    assert dropped(findings)[DIFFUSION] == {
        *("dcp_local_seq_lens", "positions", "for_cudagraph_capture")
    }


# A small vLLM of the same shape, in which one method at a time is another.
