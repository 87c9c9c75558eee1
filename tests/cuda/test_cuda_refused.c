/* What the kernels of the GPU refuse, and calls that have nothing to do. */
#include "model/cuda/ops_cuda.h"
#include "quant/codec.h"
#include "tests/cuda/cuda_memory.h"

static void test_rows(void)
{
    struct spw_norm_args norm = {.rows = 1, .cols = 1, .dtype = SPW_DTYPE_F16};
    struct spw_rope_append_args rope = {.rows = 1,
                                        .n_heads = 1,
                                        .n_kv_heads = 1,
                                        .head_dim = 8,
                                        .rotary_dim = 16,
                                        .dtype = SPW_DTYPE_F32};
    struct spw_softcap_args softcap = {.n = 0};
    struct spw_each_args each = {.n = 1, .dtype = SPW_DTYPE_F16};
    CHECK(spw_each_cuda(&each, NULL) == -EINVAL);
    each = (struct spw_each_args){.n = 0, .dtype = SPW_DTYPE_F32};
    CHECK(!spw_each_cuda(&each, NULL));
    CHECK(spw_norm_cuda(&norm, NULL) == -EINVAL);
    CHECK(spw_rope_append_cuda(&rope, NULL) == -EINVAL);
    rope.rotary_dim = 8, rope.rows = SPW_APPEND_TILES * SPW_TILE_TOKENS + 1;
    CHECK(spw_rope_append_cuda(&rope, NULL) == -EINVAL);
    rope.rows = 1, rope.head_dim = 2 * SPW_MOST_HEAD_DIM;
    CHECK(spw_rope_append_cuda(&rope, NULL) == -EINVAL);
    norm.dtype = SPW_DTYPE_BF16;
    norm.rows = rope.rows = 0;
    CHECK(!spw_norm_cuda(&norm, NULL) && !spw_rope_append_cuda(&rope, NULL));
    CHECK(!spw_softcap_cuda(&softcap, NULL));
}

static void test_experts(void)
{
    struct spw_route_args route = {.rows = 1, .n_experts = 2, .n_kept = 3};
    struct spw_gather_args gather = {.dtype = SPW_DTYPE_F16};
    struct spw_combine_args combine = {.dtype = SPW_DTYPE_F16};
    route.dtype = SPW_DTYPE_F32;
    CHECK(spw_route_cuda(&route, NULL) == -EINVAL);
    CHECK(spw_gather_cuda(&gather, NULL) == -EINVAL);
    CHECK(spw_combine_cuda(&combine, NULL) == -EINVAL);
    route.n_kept = 1, route.rows = 0;
    gather.dtype = combine.dtype = SPW_DTYPE_BF16;
    CHECK(!spw_route_cuda(&route, NULL));
    CHECK(!spw_gather_cuda(&gather, NULL) && !spw_combine_cuda(&combine, NULL));
}

static void test_states(void)
{
    struct spw_conv_args conv = {.width = 2, .dtype = SPW_DTYPE_F16};
    struct spw_recur_args recur = {.key_dim = SPW_MOST_KEY_DIM + 1, .dtype = SPW_DTYPE_F32};
    struct spw_gated_norm_args norm = {.x_dtype = SPW_DTYPE_BF16, .dtype = SPW_DTYPE_F32};
    CHECK(spw_conv_cuda(&conv, NULL) == -EINVAL && spw_recur_cuda(&recur, NULL) == -EINVAL);
    CHECK(spw_gated_norm_cuda(&norm, NULL) == -EINVAL);
    conv.dtype = norm.x_dtype = SPW_DTYPE_F32, recur.key_dim = 1;
    CHECK(!spw_conv_cuda(&conv, NULL) && !spw_recur_cuda(&recur, NULL));
    CHECK(!spw_gated_norm_cuda(&norm, NULL));
    conv.width = SPW_MOST_CONV_WIDTH + 1;
    CHECK(spw_conv_cuda(&conv, NULL) == -EINVAL);
}

static void test_attention(void)
{
    _Alignas(64) static char memory[128];
    struct spw_attention_args a = {.rows = 1,
                                   .n_heads = 1,
                                   .n_kv_heads = 1,
                                   .head_dim = 64,
                                   .n_tiles = SPW_ATTENTION_TILES + 4,
                                   .dtype = SPW_DTYPE_BF16,
                                   .kv_dtype = SPW_DTYPE_BF16};
    CHECK(spw_attention_cuda(&a, NULL) == -EINVAL);
    a.n_tiles = 4, a.tile_first = 2;
    CHECK(spw_attention_cuda(&a, NULL) == -EINVAL);
    a.tile_first = 0, a.head_dim = 2000;
    CHECK(spw_attention_cuda(&a, NULL) == -EINVAL);
    a.quantized_end = 4;
    CHECK(spw_attention_cuda(&a, NULL) == -EINVAL);
    a.head_dim = 64, a.qformat = SPW_QFORMAT_EXACT;
    CHECK(spw_attention_cuda(&a, NULL) == -EINVAL);
    struct spw_codec_args c = {memory, memory, 1, {64, 64}, SPW_DTYPE_BF16, 0, (uint32_t *)memory};
    c.format = SPW_QFORMAT_EXACT;
    CHECK(spw_codec_encode_cuda(&c, NULL) == -EINVAL);
    c.format = SPW_QFORMAT_INT8, c.widths.k = 63;
    CHECK(spw_codec_encode_cuda(&c, NULL) == -EINVAL);
    c.widths.k = 64, c.qtile = memory + 16;
    CHECK(spw_codec_encode_cuda(&c, NULL) == -EINVAL);
}

static void test_products(void)
{
    float none[4] = {0}; /* never read: nothing is launched */
    struct spw_linear_args a = {.n = 4, .k = 4, .x_stride = 4, .y_stride = 4};
    a.x_dtype = a.w_dtype = a.y_dtype = SPW_DTYPE_F32;
    CHECK(spw_linear_cuda(&a, NULL) == 0);
    a.x = a.w = a.y = none;
    a.m = 1;
    a.x_stride = 3;
    CHECK(spw_linear_cuda(&a, NULL) == -EINVAL);
    a.x_stride = 4;
    a.y_dtype = SPW_DTYPE_BF16;
    CHECK(spw_linear_cuda(&a, NULL) == -EINVAL);
    a.x_dtype = SPW_DTYPE_BF16;
    CHECK(spw_linear_cuda(&a, NULL) == -EINVAL);
    struct spw_gated_linear_args gated = {.n = 4, .k = 4, .x_stride = 4, .dtype = SPW_DTYPE_F16};
    CHECK(spw_gated_linear_cuda(&gated, NULL) == 0);
    gated.m = 1;
    CHECK(spw_gated_linear_cuda(&gated, NULL) == -EINVAL);
    gated.dtype = gated.gate_dtype = gated.up_dtype = SPW_DTYPE_F32;
    gated.x_stride = 3;
    CHECK(spw_gated_linear_cuda(&gated, NULL) == -EINVAL);
}

static void test_codes(void)
{
    _Alignas(64) static char none[64]; /* never read: nothing is launched */
    struct spw_linear_args a = {.x = none, .w = none, .y = none, .codes = none, .m = 1, .n = 1};
    a.k = a.x_stride = 48;
    a.y_stride = 1;
    a.x_dtype = a.y_dtype = SPW_DTYPE_BF16;
    a.w_dtype = SPW_DTYPE_Q4_0;
    CHECK(spw_linear_cuda(&a, NULL) == -EINVAL); /* half a block */
    a.k = a.x_stride = 32;
    a.w = none + 1;
    CHECK(spw_linear_cuda(&a, NULL) == -EINVAL);
    a.w = none;
    a.codes = none + 8;
    CHECK(spw_linear_cuda(&a, NULL) == -EINVAL);
}

int main(void)
{
    if (!cuda_there())
        return CHECK_SKIP;
    test_rows();
    test_products();
    test_codes();
    test_attention();
    test_experts();
    test_states();
    return check_done();
}
