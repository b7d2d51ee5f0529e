"""Costs of a TPU program by kind, counted by hand."""

from plan.costs import KINDS, Cost, costs

# Lines as the TPU compiler writes them. A tile of 8 x 128 pads 64 columns to 128, and 100 rows to 104. S(1) is VMEM.
HLO = """
HloModule jit_step

%fused_slice (a: bf16[2,200,64], b: s32[]) -> bf16[200,64] {
  %a = bf16[2,200,64]{2,1,0:T(8,128)(2,1)} parameter(0)
  %b = s32[]{:T(128)} parameter(1)
  %zero.1 = s32[]{:T(128)} constant(0)
  %layer = bf16[1,200,64]{2,1,0:T(8,128)(2,1)} dynamic-slice(%a, %b, %zero.1, %zero.1), dynamic_slice_sizes={1,200,64}
  ROOT %matrix = bf16[200,64]{1,0:T(8,128)(2,1)} bitcast(%layer)
}

%fused_product (p0: bf16[2,200,64], p1: s32[], p2: bf16[100,200]) -> bf16[100,64] {
  %p0 = bf16[2,200,64]{2,1,0:T(8,128)(2,1)} parameter(0)
  %p1 = s32[]{:T(128)} parameter(1)
  %p2 = bf16[100,200]{1,0:T(8,128)(2,1)} parameter(2)
  %sliced = bf16[200,64]{1,0:T(8,128)(2,1)} fusion(%p0, %p1), kind=kLoop, calls=%fused_slice
  ROOT %product = bf16[100,64]{1,0:T(8,128)(2,1)} convolution(%p2, %sliced), window={}, dim_labels=bf_io->bf
}

%fused_save (q0: f32[2,8,64], q1: f32[8,64], q2: s32[]) -> f32[2,8,64] {
  %q0 = f32[2,8,64]{2,1,0:T(8,128)} parameter(0)
  %q1 = f32[8,64]{1,0:T(8,128)} parameter(1)
  %q2 = s32[]{:T(128)} parameter(2)
  %zero.2 = s32[]{:T(128)} constant(0)
  %part = f32[1,8,64]{2,1,0:T(8,128)} bitcast(%q1)
  ROOT %saved = f32[2,8,64]{2,1,0:T(8,128)} dynamic-update-slice(%q0, %part, %q2, %zero.2, %zero.2)
}

%fused_bits (r0: u32[8,128]) -> u32[8,128] {
  %r0 = u32[8,128]{1,0:T(8,128)} parameter(0)
  %left = u32[8,128]{1,0:T(8,128)} shift-left(%r0, %r0)
  %right = u32[8,128]{1,0:T(8,128)} shift-right-logical(%r0, %r0)
  ROOT %bits = u32[8,128]{1,0:T(8,128)} xor(%left, %right)
}

%body (arg: (s32[], bf16[2,200,64], bf16[100,200], f32[2,8,64])) -> (s32[], f32[8,64]) {
  %i = s32[]{:T(128)} get-tuple-element(%arg), index=0
  %weights = bf16[2,200,64]{2,1,0:T(8,128)(2,1)} get-tuple-element(%arg), index=1
  %states = bf16[100,200]{1,0:T(8,128)(2,1)} get-tuple-element(%arg), index=2
  %stack = f32[2,8,64]{2,1,0:T(8,128)} get-tuple-element(%arg), index=3
  %kept = f32[8,64]{1,0:T(8,128)S(1)} get-tuple-element(%arg), index=4
  %fusion.1 = bf16[100,64]{1,0:T(8,128)(2,1)} fusion(%weights, %i, %states), kind=kOutput, calls=%fused_product, backend_config={"window_config":{"estimated_cycles":"100"}}
  %fusion.2 = f32[2,8,64]{2,1,0:T(8,128)} fusion(%stack, %kept, %i), kind=kLoop, calls=%fused_save, backend_config={"window_config":{"estimated_cycles":"40"}}
}

ENTRY %main (p: f32[4,64]) -> f32[4,64] {
  %p = f32[4,64]{1,0:T(4,128)} parameter(0)
  %constant.7 = f32[]{:T(128)} constant(0)
  %zeros = f32[16,64]{0,1:T(8,128)} broadcast(%constant.7), dimensions={}, backend_config={"window_config":{"estimated_cycles":"7"}}
  %loop = (s32[], f32[8,64]) while(%t), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %turned = f32[4,64]{0,1:T(4,128)S(1)} copy(%p), backend_config={"window_config":{"estimated_cycles":"9"}}
  %copy-start = (f32[4,64]{1,0:T(4,128)S(1)}, f32[4,64]{1,0:T(4,128)}, u32[]{:S(2)}) copy-start(%p)
  %stored-start = (f32[4,64]{1,0:T(4,128)}, f32[4,64]{1,0:T(4,128)S(1)}, u32[]{:S(2)}) copy-start(%turned)
  %copy-done = f32[4,64]{1,0:T(4,128)S(1)} copy-done(%copy-start)
  %fusion.3 = u32[8,128]{1,0:T(8,128)S(1)} fusion(%words), kind=kLoop, calls=%fused_bits, backend_config={"window_config":{"estimated_cycles":"50"}}
  %kernel = bf16[8,128]{1,0:T(8,128)(2,1)} custom-call(%x), custom_call_target="tpu_custom_call"
  ROOT %sum = f32[4,64]{1,0:T(4,128)} add(%p, %turned)
}
"""  # noqa: E501


def test_costs_by_kind():
    found = costs(HLO)
    # A loop of three: one layer's matrix [200, 64] of the stack of two, the index, rows [100, 200], result [100, 64].
    padded, plain = 2 * 200 * 128 + 4 + 2 * 104 * 256 + 2 * 104 * 128, 2 * 200 * 64 + 4 + 2 * 100 * 200 + 2 * 100 * 64
    assert found["matrix products"] == Cost(3 * 100, 3 * padded, 3 * (padded - plain))
    # Written in place: 8 rows of 64 and the index; what is saved comes from VMEM.
    assert found["scanned arrays"] == Cost(3 * 40, 3 * (4 * 8 * 128 + 4), 3 * 4 * 8 * 64)
    assert found["random bits"] == Cost(50, 0, 0)
    # [16, 64] in the order of its transpose: 16 columns are padded to 128; and the constant.
    assert found["zero fills"] == Cost(7, 4 * 64 * 128 + 4, 4 * 64 * (128 - 16))
    assert found["copies"] == Cost(9, 4 * 4 * 128, 4 * 4 * 64)  # read from memory, written to VMEM
    assert found["kernels"].cycles == 0 and found["kernels"].bytes == 2 * 8 * 128
    assert list(found)[:3] == ["matrix products", "scanned arrays", "random bits"] and set(found) == set(KINDS)


def test_transfers_are_what_is_read_or_written_in_memory():
    """The copy to VMEM reads 4 rows of 64, padded to 128, and the copy from it writes as many."""
    assert costs(HLO)["transfers"] == Cost(0, 2 * 4 * 4 * 128, 2 * 4 * 4 * 64)


HASH = """
HloModule jit_dropout

%fused_dropout (x: bf16[8,128], lines: u32[8,128]) -> bf16[8,128] {
  %x = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  %words = u32[8,128]{1,0:T(8,128)} parameter(1)
  %shift = u32[8,128]{1,0:T(8,128)} constant(16)
  %right = u32[8,128]{1,0:T(8,128)} shift-right-logical(%words, %shift)
  %mixed = u32[8,128]{1,0:T(8,128)} xor(%words, %right)
  %hash = u32[8,128]{1,0:T(8,128)} multiply(%mixed, %mixed)
  %kept = pred[8,128]{1,0:T(8,128)(4,1)} compare(%hash, %shift), direction=GE
  ROOT %dropped = bf16[8,128]{1,0:T(8,128)(2,1)} select(%kept, %x, %x)
}

ENTRY %main (x: bf16[8,128], words: u32[8,128]) -> bf16[8,128] {
  %x.1 = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  %words.1 = u32[8,128]{1,0:T(8,128)} parameter(1)
  ROOT %fusion = bf16[8,128]{1,0:T(8,128)(2,1)} fusion(%x.1, %words.1), kind=kLoop, calls=%fused_dropout, backend_config={"window_config":{"estimated_cycles":"60"}}
}
"""  # noqa: E501


def test_the_hash_of_dropout_is_random_bits():
    """A fusion that multiplies other numbers than words, next to the same shifts, is not."""
    assert costs(HASH)["random bits"].cycles == 60
    of_floats = HASH.replace("%hash = u32[8,128]{1,0:T(8,128)} multiply", "%hash = f32[8,128]{1,0:T(8,128)} multiply")
    assert costs(of_floats)["random bits"].cycles == 0 and costs(of_floats)["other"].cycles == 60
