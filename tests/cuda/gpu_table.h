/* The GPU as one more table of kernels, for tests of kernels on the CPU: every kernel of the table
 * is one task, which takes pointers to the CPU's memory. What a call points to goes to the GPU in
 * blocks of exactly its size, and what the call writes comes back. Pointers that are equal stay
 * equal. Half of the calls have all blocks as aligned as can be, the others at any element. */
#ifndef SPW_TESTS_CUDA_GPU_TABLE_H
#define SPW_TESTS_CUDA_GPU_TABLE_H

#include "base/numbers.h"
#include "model/cpu/ops_cpu.h"
#include "model/cuda/ops_cuda.h"
#include "quant/codec.h"
#include "quant/codes.h"
#include "quant/types.h"
#include "tests/cuda/cuda_memory.h"
#include "tests/cuda/simt_control.h"

/* Not there on a real GPU. */
extern __typeof__(spw_simt_set) spw_simt_set __attribute__((weak));
extern __typeof__(spw_simt_allow_host_arguments) spw_simt_allow_host_arguments
    __attribute__((weak));

/* On the emulated GPU, one of this compute capability (0: the default). */
static inline void gpu_set(uint64_t seed, int capability)
{
    if (spw_simt_set)
        spw_simt_set(&(struct spw_simt_options){.seed = seed, .capability = capability});
}

/* What a member of a call points to. */
struct lent {
    void *at; /* the member */
    size_t bytes, element;
    bool is_output;
    void *host, *gpu;
    size_t offset;
};

static inline struct lent lent_input(void *at, size_t n, enum spw_dtype t)
{
    const size_t element = spw_dtype_bytes(t);
    return (struct lent){.at = at, .bytes = n * element, .element = element};
}

static inline struct lent lent_output(void *at, size_t n, enum spw_dtype t)
{
    struct lent l = lent_input(at, n, t);
    l.is_output = true;
    return l;
}

/* These have the alignment of the block that they are in. */
static inline struct lent lent_array(void *at, size_t n, size_t bytes, bool is_output)
{
    return (struct lent){.at = at, .bytes = n * bytes, .is_output = is_output};
}

/* The first of the blocks at this place of the CPU's memory. */
static inline struct lent *lent_first(struct lent *all, const void *host)
{
    while (all->host != host)
        all++;
    return all;
}

/* Puts the GPU's pointers into the call. */
static inline void lend(struct lent *all, size_t n)
{
    static uint64_t seed;
    const bool is_aligned = check_random(&seed) % 2;
    for (struct lent *l = all; l < all + n; l++) {
        memcpy(&l->host, l->at, sizeof l->host);
        struct lent *first = lent_first(all, l->host);
        first->bytes = l->bytes > first->bytes ? l->bytes : first->bytes;
        first->is_output |= l->is_output;
        l->offset = is_aligned ? 0 : check_random(&seed) % 9 * l->element;
    }
    for (struct lent *l = all; l < all + n; l++) {
        struct lent *first = lent_first(all, l->host);
        if (l->host && first == l)
            l->gpu = cuda_copy_of(l->host, l->bytes, l->offset);
        memcpy(l->at, &first->gpu, sizeof first->gpu);
    }
}

static inline void take_back(const struct lent *all, size_t n)
{
    for (const struct lent *l = all; l < all + n; l++)
        if (l->gpu)
            cuda_take_back(l->is_output ? l->host : NULL, l->gpu, l->bytes, l->offset);
}

static inline size_t gpu_one_task(const void *args)
{
    (void)args;
    return 1;
}

/* Elements from the first row's first to the last row's last. */
static inline size_t gpu_rows(size_t rows, size_t stride, size_t width)
{
    return rows ? (rows - 1) * stride + width : 0;
}

/* A kernel of the table: the launcher, with these blocks of its arguments `a`. */
#define GPU_KERNEL(op, ...)                                                                        \
    static void gpu_run_##op(const void *args, size_t task, unsigned worker)                       \
    {                                                                                              \
        struct spw_##op##_args a = *(const struct spw_##op##_args *)args;                          \
        struct lent all[] = {__VA_ARGS__};                                                         \
        (void)task, (void)worker;                                                                  \
        lend(all, sizeof all / sizeof *all);                                                       \
        CHECK(spw_##op##_cuda(&a, NULL) == 0);                                                     \
        take_back(all, sizeof all / sizeof *all);                                                  \
    }                                                                                              \
    static const struct spw_kernel gpu_##op = {#op, gpu_one_task, gpu_run_##op};

/* ---- rows ---- */

GPU_KERNEL(norm, lent_input(&a.x, gpu_rows(a.rows, a.x_stride, a.cols), a.dtype),
           lent_output(&a.y, gpu_rows(a.rows, a.y_stride, a.cols), a.dtype),
           lent_input(&a.residual, gpu_rows(a.rows, a.y_stride, a.cols), a.dtype),
           lent_input(&a.weight, a.cols, SPW_DTYPE_F32), lent_input(&a.bias, a.cols, SPW_DTYPE_F32),
           lent_input(&a.factor, 1, SPW_DTYPE_F32))

GPU_KERNEL(gated, lent_input(&a.gate, gpu_rows(a.rows, a.gate_stride, a.cols), a.dtype),
           lent_input(&a.up, gpu_rows(a.rows, a.up_stride, a.cols), a.dtype),
           lent_output(&a.y, gpu_rows(a.rows, a.cols, a.cols), a.dtype))

GPU_KERNEL(softcap, lent_output(&a.x, a.n, SPW_DTYPE_F32))

GPU_KERNEL(each, lent_output(&a.x, a.n, a.dtype))

static inline void gpu_run_rope_append(const void *args, size_t task, unsigned worker)
{
    struct spw_rope_append_args a = *(const struct spw_rope_append_args *)args;
    const size_t heads = a.n_heads + (size_t)(a.v_is_k ? 1 : 2) * a.n_kv_heads, d = a.head_dim;
    const size_t q = d * (a.norm_by_head ? a.n_heads : 1),
                 k = d * (a.norm_by_head ? a.n_kv_heads : 1);
    const uint32_t shared = spw_append_slice_heads(&a);
    const size_t n_tiles = (shared ? a.n_kv_heads / shared : 1) * spw_append_tiles(&a);
    struct lent all[7 + SPW_APPEND_TILES] = {
        lent_output(&a.qkv, gpu_rows(a.rows, a.stride, heads * d), a.dtype),
        lent_input(&a.q, gpu_rows(a.rows, a.q_stride, (a.n_heads - 1) * a.q_step + d), a.dtype),
        lent_input(&a.q_norm, q, SPW_DTYPE_F32),
        lent_input(&a.k_norm, k, SPW_DTYPE_F32),
        lent_input(&a.q_norm_bias, q, SPW_DTYPE_F32),
        lent_input(&a.k_norm_bias, k, SPW_DTYPE_F32),
        lent_input(&a.inv_freq, a.rotary_dim / 2, SPW_DTYPE_F32)};
    (void)task, (void)worker;
    for (size_t i = 0; i < n_tiles; i++)
        all[7 + i] = lent_array(
            &a.tiles[i], 1, spw_tile_bytes(shared, spw_tile_square(a.head_dim), a.kv_dtype), true);
    lend(all, 7 + n_tiles);
    CHECK(spw_rope_append_cuda(&a, NULL) == 0);
    take_back(all, 7 + n_tiles);
}

/* ---- products ---- */

static inline void gpu_multiply(const struct spw_linear_args *args, bool has_codes)
{
    struct spw_linear_args a = *args;
    struct lent all[] = {
        lent_input(&a.x, gpu_rows(a.m, a.x_stride, a.k), a.x_dtype),
        lent_array(&a.w, a.n, spw_row_bytes(a.w_dtype, a.k), false),
        lent_input(&a.bias, a.n, SPW_DTYPE_F32),
        lent_output(&a.y, gpu_rows(a.m, a.y_stride, a.n), a.y_dtype),
        lent_input(&a.residual, gpu_rows(a.m, a.y_stride, a.n), a.y_dtype),
        lent_array(&a.codes, a.m * spw_codes_groups(a.k), sizeof(struct spw_codes), true)};
    all[1].element = spw_type_of(a.w_dtype).align;
    a.has_codes = has_codes;
    lend(all, sizeof all / sizeof *all);
    CHECK(spw_linear_cuda(&a, NULL) == 0);
    take_back(all, sizeof all / sizeof *all);
}

static inline void gpu_run_linear(const void *args, size_t task, unsigned worker)
{
    (void)task, (void)worker;
    gpu_multiply(args, false);
}

/* With the codes that an earlier product has made. */
static inline void gpu_run_linear_codes(const void *args, size_t task, unsigned worker)
{
    (void)task, (void)worker;
    gpu_multiply(args, true);
}

/* Not of the table. */
static inline void gpu_multiply_gated(const struct spw_gated_linear_args *args)
{
    struct spw_gated_linear_args a = *args;
    struct lent all[] = {
        lent_input(&a.x, gpu_rows(a.m, a.x_stride, a.k), a.dtype),
        lent_array(&a.w_gate, a.n, spw_row_bytes(a.gate_dtype, a.k), false),
        lent_array(&a.w_up, a.n, spw_row_bytes(a.up_dtype, a.k), false),
        lent_input(&a.bias, 2 * a.n, SPW_DTYPE_F32),
        lent_output(&a.y, gpu_rows(a.m, a.n, a.n), a.dtype),
        lent_array(&a.codes, a.m * spw_codes_groups(a.k), sizeof(struct spw_codes), true)};
    all[1].element = spw_type_of(a.gate_dtype).align;
    all[2].element = spw_type_of(a.up_dtype).align;
    lend(all, sizeof all / sizeof *all);
    CHECK(spw_gated_linear_cuda(&a, NULL) == 0);
    take_back(all, sizeof all / sizeof *all);
}

static inline size_t gpu_no_workspace(size_t k, enum spw_dtype x, enum spw_dtype w)
{
    (void)k, (void)x, (void)w;
    return 0;
}

/* ---- attention ---- */

static inline size_t gpu_tile_bytes(const struct spw_attention_args *a, uint32_t t)
{
    const struct spw_tile_widths widths = spw_tile_square(a->head_dim);
    const bool quantized = t >= a->quantized_first && t < a->quantized_end;
    return quantized ? spw_qtile_bytes(a->n_kv_heads, widths, a->qformat)
                     : spw_tile_bytes(a->n_kv_heads, widths, a->kv_dtype);
}

/* Tiles lie in one allocation, as in an arena. */
static inline void gpu_attend(const struct spw_attention_args *args, bool splits)
{
    struct spw_attention_args a = *args;
    const size_t width = (size_t)a.n_heads * a.head_dim, y_stride = a.y_stride ? a.y_stride : width;
    const size_t state = a.rows * a.n_heads * (a.head_dim + 2);
    size_t bytes = 0;
    struct lent all[] = {
        lent_array(&a.q, gpu_rows(a.rows, a.q_stride, width), spw_dtype_bytes(a.dtype), false),
        lent_array(&a.state, state, sizeof *a.state, true),
        lent_array(&a.split_states, spw_div_up(a.n_tiles, SPW_SPLIT_TILES) * state,
                   sizeof *a.split_states, false),
        lent_array(&a.y, gpu_rows(a.rows, y_stride, width), spw_dtype_bytes(a.dtype), true),
        lent_array(&a.extra_logits, a.n_heads, sizeof *a.extra_logits, false),
        lent_array(&a.relative_bias, a.n_heads * (2 * (size_t)a.most_distance + 1),
                   sizeof *a.relative_bias, false)};
    a.split_states = splits ? a.split_states : NULL;
    for (uint32_t t = 0; t < a.n_tiles; t++)
        bytes += a.tiles[t] ? gpu_tile_bytes(&a, t) : 0;
    struct cuda_arena arena = cuda_arena_open(a.n_tiles, bytes);
    for (uint32_t t = 0; t < a.n_tiles; t++)
        if (a.tiles[t])
            a.tiles[t] = cuda_arena_copy_of(&arena, a.tiles[t], gpu_tile_bytes(&a, t));
    lend(all, sizeof all / sizeof *all);
    if (spw_simt_allow_host_arguments) /* two distances side by side may look like an address */
        spw_simt_allow_host_arguments(true);
    CHECK(spw_attention_cuda(&a, NULL) == 0);
    if (spw_simt_allow_host_arguments)
        spw_simt_allow_host_arguments(false);
    take_back(all, sizeof all / sizeof *all);
    cuda_arena_close(&arena);
}

static inline void gpu_run_attention(const void *args, size_t task, unsigned worker)
{
    (void)task, (void)worker;
    gpu_attend(args, false);
}

static inline void gpu_run_merge(const void *args, size_t task, unsigned worker)
{
    (void)task, (void)worker;
    gpu_attend(args, true);
}

static inline void gpu_run_kv_quantize(const void *args, size_t task, unsigned worker)
{
    struct spw_codec_args a = *(const struct spw_codec_args *)args;
    struct lent all[] = {
        lent_array(&a.tile, 1, spw_tile_bytes(a.n_kv_heads, a.widths, a.dtype), false),
        lent_array(&a.qtile, 1, spw_qtile_bytes(a.n_kv_heads, a.widths, a.format), true),
        lent_array(&a.not_finite, 1, sizeof *a.not_finite, true)};
    (void)task, (void)worker;
    lend(all, sizeof all / sizeof *all);
    CHECK(spw_codec_encode_cuda(&a, NULL) == 0);
    take_back(all, sizeof all / sizeof *all);
}

/* ---- experts ---- */

/* Rows that n indices reach; NULL: row i is i. */
static inline size_t gpu_highest(const uint32_t *index, size_t n)
{
    size_t rows = index ? 0 : n;
    for (size_t i = 0; i < n && index; i++)
        rows = index[i] >= rows ? index[i] + 1 : rows;
    return rows;
}

static inline size_t gpu_gathered(const struct spw_gather_args *a)
{
    return gpu_highest(a->index, a->times && !a->index ? spw_div_up(a->rows, a->times) : a->rows);
}

GPU_KERNEL(route, lent_input(&a.x, gpu_rows(a.rows, a.cols, a.cols), a.dtype),
           lent_input(&a.w, gpu_rows(a.n_experts, a.cols, a.cols), SPW_DTYPE_F32),
           lent_input(&a.bias, a.n_experts, SPW_DTYPE_F32),
           lent_input(&a.choice_bias, a.n_experts, SPW_DTYPE_F32),
           lent_input(&a.expert_scale, a.n_experts, SPW_DTYPE_F32),
           lent_output(&a.scores, gpu_rows(a.rows, a.n_experts, a.n_experts), SPW_DTYPE_F32),
           lent_array(&a.choices, gpu_rows(a.rows, a.n_kept, a.n_kept), sizeof *a.choices, true))

GPU_KERNEL(gather, lent_input(&a.x, gpu_rows(gpu_gathered(&a), a.x_stride, a.cols), a.dtype),
           lent_array(&a.index, a.rows, sizeof *a.index, false),
           lent_output(&a.y, gpu_rows(a.rows, a.cols, a.cols), a.dtype),
           lent_array(&a.choices, gpu_rows(gpu_highest(a.index, a.rows), a.n_kept, a.n_kept),
                      sizeof *a.choices, false))

GPU_KERNEL(combine, lent_input(&a.residual, gpu_rows(a.rows, a.cols, a.cols), a.dtype),
           lent_output(&a.h, gpu_rows(a.rows, a.cols, a.cols), a.dtype),
           lent_input(&a.y,
                      gpu_rows(gpu_highest(a.places, gpu_rows(a.rows, a.n_kept, a.n_kept)), a.cols,
                               a.cols),
                      a.dtype),
           lent_array(&a.choices, gpu_rows(a.rows, a.n_kept, a.n_kept), sizeof *a.choices, false),
           lent_array(&a.places, gpu_rows(a.rows, a.n_kept, a.n_kept), sizeof *a.places, false))

/* The scores are part of route, and the splits part of the call that merges them. */
static inline void gpu_run_nothing(const void *args, size_t task, unsigned worker)
{
    (void)args, (void)task, (void)worker;
}

/* ---- layers with a state ---- */

/* Lends the states after n other blocks. Returns how many blocks there are. */
static inline size_t gpu_add_states(struct lent *all, size_t n, struct spw_state_part *parts,
                                    uint32_t n_parts, size_t floats)
{
    for (uint32_t i = 0; i < n_parts; i++)
        all[n++] = lent_array(&parts[i].state, floats, sizeof(float), true);
    return n;
}

static inline size_t gpu_end_of(const struct spw_state_part *parts, uint32_t n_parts)
{
    return n_parts ? parts[n_parts - 1].row + parts[n_parts - 1].rows : 0;
}

static inline void gpu_run_conv(const void *args, size_t task, unsigned worker)
{
    struct spw_conv_args a = *(const struct spw_conv_args *)args;
    const size_t rows = gpu_end_of(a.parts, a.n_parts);
    struct lent all[4 + SPW_STATE_PARTS] = {
        lent_input(&a.x, rows * a.x_stride, a.dtype),
        lent_input(&a.w, (size_t)a.channels * a.width, SPW_DTYPE_F32),
        lent_input(&a.bias, a.channels, SPW_DTYPE_F32),
        lent_array(&a.y, rows * a.channels, spw_dtype_bytes(a.dtype), true)};
    const size_t n = gpu_add_states(all, 4, a.parts, a.n_parts, a.channels * (a.width - 1));
    (void)task, (void)worker;
    lend(all, n);
    CHECK(spw_conv_cuda(&a, NULL) == 0);
    take_back(all, n);
}

static inline void gpu_run_recur(const void *args, size_t task, unsigned worker)
{
    struct spw_recur_args a = *(const struct spw_recur_args *)args;
    const size_t rows = gpu_end_of(a.parts, a.n_parts), values = (size_t)a.heads * a.value_dim;
    const size_t keys = (size_t)a.key_heads * a.key_dim;
    const enum spw_dtype y = a.kind == SPW_MIXER_SSD ? SPW_DTYPE_F32 : a.dtype;
    struct lent all[10 + SPW_STATE_PARTS] = {
        lent_input(&a.q, gpu_rows(rows, a.q_stride, keys), a.dtype),
        lent_input(&a.k, gpu_rows(rows, a.k_stride, keys), a.dtype),
        lent_input(&a.v, gpu_rows(rows, a.v_stride, values), a.dtype),
        lent_input(&a.rate, rows * a.rate_stride, a.dtype),
        lent_input(&a.gate, rows * a.rate_stride, a.dtype),
        lent_input(&a.a,
                   a.kind == SPW_MIXER_SCAN  ? a.key_dim * values
                   : a.kind == SPW_MIXER_LRU ? values
                                             : a.heads,
                   SPW_DTYPE_F32),
        lent_input(&a.dt_bias, a.heads, SPW_DTYPE_F32),
        lent_input(&a.skip, a.kind == SPW_MIXER_SSD ? a.heads : values, SPW_DTYPE_F32),
        lent_array(&a.y, rows * values, spw_dtype_bytes(y), true),
        lent_array(&a.not_finite, 1, sizeof *a.not_finite, true)};
    const size_t n = gpu_add_states(all, 10, a.parts, a.n_parts, a.key_dim * values);
    (void)task, (void)worker;
    lend(all, n);
    CHECK(spw_recur_cuda(&a, NULL) == 0);
    take_back(all, n);
}

static inline size_t gpu_width(const struct spw_gated_norm_args *a)
{
    return (size_t)a->n_groups * a->cols;
}

GPU_KERNEL(gated_norm, lent_input(&a.x, gpu_rows(a.rows, gpu_width(&a), gpu_width(&a)), a.x_dtype),
           lent_input(&a.gate, gpu_rows(a.rows, a.gate_stride, a.gate_stride), a.dtype),
           lent_input(&a.weight, a.own_weights ? gpu_width(&a) : a.cols, SPW_DTYPE_F32),
           lent_output(&a.y, gpu_rows(a.rows, gpu_width(&a), gpu_width(&a)), a.dtype))

/* ---- the table ---- */

static const struct spw_kernel gpu_rope_append = {"rope_append", gpu_one_task, gpu_run_rope_append};
static const struct spw_kernel gpu_conv = {"conv", gpu_one_task, gpu_run_conv};
static const struct spw_kernel gpu_recur = {"recur", gpu_one_task, gpu_run_recur};
static const struct spw_kernel gpu_linear = {"linear", gpu_one_task, gpu_run_linear};
static const struct spw_kernel gpu_linear_codes = {"linear_codes", gpu_one_task,
                                                   gpu_run_linear_codes};
static const struct spw_kernel gpu_attention = {"attention", gpu_one_task, gpu_run_attention};
static const struct spw_kernel gpu_merge = {"merge", gpu_one_task, gpu_run_merge};
static const struct spw_kernel gpu_kv_quantize = {"kv_quantize", gpu_one_task, gpu_run_kv_quantize};
static const struct spw_kernel gpu_nothing = {"nothing", gpu_one_task, gpu_run_nothing};

static const struct spw_cpu_kernels gpu_table = {.isa = SPW_ISA_COUNT,
                                                 .norm = &gpu_norm,
                                                 .linear = &gpu_linear,
                                                 .rope_append = &gpu_rope_append,
                                                 .kv_quantize = &gpu_kv_quantize,
                                                 .attention = &gpu_attention,
                                                 .attention_splits = &gpu_nothing,
                                                 .attention_merge = &gpu_merge,
                                                 .gated = &gpu_gated,
                                                 .softcap = &gpu_softcap,
                                                 .each = &gpu_each,
                                                 .route_scores = &gpu_nothing,
                                                 .route = &gpu_route,
                                                 .gather = &gpu_gather,
                                                 .combine = &gpu_combine,
                                                 .encode = &gpu_linear,
                                                 .linear_codes = &gpu_linear_codes,
                                                 .conv = &gpu_conv,
                                                 .recur = &gpu_recur,
                                                 .gated_norm = &gpu_gated_norm,
                                                 .linear_workspace = gpu_no_workspace};

#endif
