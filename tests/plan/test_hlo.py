"""Collectives of a program, counted by hand."""

import pytest

from plan.hlo import collective_bytes

HLO = """
HloModule jit_step

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%body.1 (arg: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %gathered = f32[16,4]{1,0} all-gather(%x), dimensions={0}
}

%below_5 (arg: (s32[], f32[8,4])) -> pred[] {
  %five = s32[]{:T(128)} constant(5)
  %counter = s32[]{:T(128)} get-tuple-element(%arg), index=0
  ROOT %lt.1 = pred[]{:T(512)} compare(%counter, %five), direction=LT, metadata={op_name="lt"}
}

%body.2 (arg: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %moved = s8[3]{0} collective-permute(%x), source_target_pairs={{0,1}}
}

%fused (p: f32[4]) -> f32[4] {
  ROOT %scattered = bf16[2,4]{1,0} reduce-scatter(%p), to_apply=%add
}

%begun (p: bf16[4,8]) -> (bf16[4,8], bf16[4,32], s32[2]) {
  %gathered.1 = bf16[4,32]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=9, dimensions={1}
  ROOT %begin = (bf16[4,8]{1,0:T(8,128)(2,1)S(1)}, bf16[4,32]{1,0}, s32[2]{0:S(4)}) custom-call(%gathered.1), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.3 (p: bf16[4,8], q: bf16[4,32]) -> (f32[2,4], bf16[4,32]) {
  %gathered.2 = bf16[4,32]{1,0:T(8,128)(2,1)S(1)} all-gather(%p), channel_id=9, dimensions={1}
  ROOT %both = (f32[2,4]{1,0}, bf16[4,32]{1,0}) tuple(%product, %gathered.2)
}

%ended (p: bf16[4,8]) -> bf16[4,32] {
  %gathered.3 = bf16[4,32]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=9, dimensions={1}
  ROOT %end = bf16[4,32]{1,0} custom-call(%p, %gathered.3), custom_call_target="AsyncCollectiveDone"
}

%all-reduce-scatter.8 (a: f32[8,6], b: f32[6,8]) -> (f32[2,6], f32[6,2]) {
  %all-reduce.81 = (f32[8,6]{1,0}, f32[6,8]{1,0}) all-reduce(%a, %b), to_apply=%add
  ROOT %parts = (f32[2,6]{1,0}, f32[6,2]{1,0}) tuple(%x, %y)
}

%wrapped (p: f32[2]) -> f32[8] {
  ROOT %exchanged = f32[8]{0} all-to-all(%p), dimensions={0}
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %loop = (s32[], f32[8,4]) while(%t), condition=%cond, body=%body.1, backend_config={"known_trip_count":{"n":"12"}}
  %other = (s32[], f32[8,4]) while(%t), condition=%below_5, body=%body.2, metadata={op_name="while"}
  %sums = (f32[10]{0}, f32[6]{0}) all-reduce(%a, %b), to_apply=%add
  %start = ((f32[4]{0}, f32[2,2]{1,0:T(8,128)}), (f32[32]{0}, f32[16,2]{1,0:T(8,128)})) all-gather-start(%p, %q)
  %done = (f32[32]{0}, f32[16,2]{1,0}) all-gather-done(%start)
  %sums.start = (f32[3]{0}, f32[5]{0}) all-reduce-start(%a, %b), to_apply=%add
  %called = f32[4] call(%p), to_apply=%fused
  %async.1 = (bf16[4,8], bf16[4,32], s32[2]) fusion(%p), kind=kCustom, calls=%begun
  %fusion.468 = (f32[2,4], bf16[4,32]) fusion(%async.1), kind=kCustom, calls=%async_collective_fusion.3
  %async.2 = bf16[4,32] fusion(%fusion.468), kind=kCustom, calls=%ended
  %fusion.282 = (f32[2,6], f32[6,2]) fusion(%a, %b), kind=kCustom, calls=%all-reduce-scatter.8
  %async.3 = ((f32[2]), f32[8], u32[]) async-start(%p), calls=%wrapped
  %async.4 = f32[8] async-done(%async.3), calls=%wrapped
}
"""  # noqa: E501


def test_collectives_count_as_often_as_their_loop_runs():
    assert collective_bytes(HLO) == {
        "all-gather": 12 * 16 * 4 * 4 + (32 + 16 * 2) * 4 + 4 * 32 * 2,  # the asynchronous one, of three fusions, once
        "all-reduce": (16 + 3 + 5) * 4,
        "reduce-scatter": 2 * 4 * 2 + (2 * 6 + 6 * 2) * 4,
        "all-to-all": 8 * 4,
        "collective-permute": 5 * 3,
    }


TWO_SLICES = """
%body (arg: (s32[], bf16[6])) -> (s32[], bf16[6]) {
  %sent = (bf16[6]{0}, u32[], token[]) send(%x, %t), frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %within = f32[10]{0} all-reduce(%a), replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add
  %send = (f32[5,8]{1,0}, u32[], token[]) send(%b, %t), frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}
  %received = (f32[5,8]{1,0}, u32[], token[]) recv(%t), frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}
  %done = token[] send-done(%send), frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime"}
  %loop = (s32[], bf16[6]) while(%t), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %log = (f32[7]{0}, u32[], token[]) send(%c, %t), is_host_transfer=true
}
"""


def test_what_a_device_sends_to_other_slices_is_a_kind_of_its_own():
    """Lines of libtpu 0.0.52's program for v5e:2x2:2. A transfer to the host is not between slices."""
    assert collective_bytes(TWO_SLICES) == {"all-reduce": 40, "between-slices": 4 * 5 * 8 + 3 * 2 * 6}


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("f8e4m3fn", 1), ("f8e5m2", 1), ("pred", 1), ("s4", 1), ("bf16", 2), ("u64", 8), ("f64", 8), ("token", 0)],
)
def test_the_bytes_of_an_element_are_those_of_its_type(dtype, size):
    """Before, types that a table lacked had four."""
    program = f"ENTRY %main (p: f32[4]) -> f32[4] {{\n  %sum = ({dtype}[3]{{0}}, f32[1]) all-reduce(%p)\n}}"
    assert collective_bytes(program) == {"all-reduce": 3 * size + 4}
