/* The operations of layers with a state on the GPU, over drawn shapes: conv and recur against the
 * portable CPU kernels (memcmp), in one call and in several; gated_norm against a reference in
 * f64. Every buffer is an allocation of its exact size. */
#include "model/cuda/ops_cuda.h"
#include "tests/cuda/cuda_memory.h"
#include "tests/unit/kernels/state_problem.h"

/* The arguments with inputs on the GPU, each at an alignment of its own. */
struct on_gpu {
    struct state_problem p; /* of which `a` counts */
    size_t offsets[STATE_INPUTS];
};

static void to_gpu(struct on_gpu *g, const struct state_problem *p, size_t wide)
{
    g->p = *p;
    for (int i = 0; i < p->n_inputs; i++) {
        void *data;
        memcpy(&data, (const char *)&p->a + p->inputs[i].place, sizeof data);
        g->offsets[i] = p->inputs[i].bytes % 4 ? wide * state_draw(0, 8) : 4 * state_draw(0, 4);
        data = cuda_copy_of(data, p->inputs[i].bytes, g->offsets[i]);
        memcpy((char *)&g->p.a + p->inputs[i].place, &data, sizeof data);
    }
}

static void off_gpu(const struct on_gpu *g)
{
    for (int i = 0; i < g->p.n_inputs; i++) {
        void *data;
        memcpy(&data, (const char *)&g->p.a + g->p.inputs[i].place, sizeof data);
        cuda_take_back(NULL, data, 0, g->offsets[i]);
    }
}

/* A call for some rows; `stays`: no state changes. */
static void call_gpu(const struct on_gpu *g, bool is_conv, bool stays, float *const *states,
                     uint32_t from, uint32_t to, char *y, uint32_t *word)
{
    if (is_conv) {
        struct spw_conv_args a = g->p.a.conv;
        a.n_parts = state_cut_parts(&g->p, states, from, to, a.parts);
        a.y = y;
        state_let_stay(a.parts, a.n_parts, stays);
        CHECK(!spw_conv_cuda(&a, NULL));
    } else {
        struct spw_recur_args a = g->p.a.recur;
        a.n_parts = state_cut_parts(&g->p, states, from, to, a.parts);
        a.y = y, a.not_finite = word;
        state_let_stay(a.parts, a.n_parts, stays);
        CHECK(!spw_recur_cuda(&a, NULL));
    }
}

/* Runs conv or recur, in calls of a few rows if `cut`; each call first with states that stay, which
 * gives the same rows. */
static struct state_written run_on_gpu(const struct state_problem *p, bool is_conv, bool cut)
{
    struct state_written w = state_written_init(p);
    const size_t bytes = p->state_floats * sizeof(float);
    float *states[STATE_MOST_PARTS];
    struct on_gpu g;
    to_gpu(&g, p, spw_dtype_bytes(is_conv ? p->a.conv.dtype : p->a.recur.dtype));
    for (uint32_t i = 0; i < p->n_parts; i++)
        states[i] = cuda_copy_of(w.states[i], bytes, 0);
    char *y = cuda_copy_of(w.y, p->y_bytes, 0), *y_first = cuda_copy_of(w.y, p->y_bytes, 0);
    uint32_t *word = cuda_copy_of(&w.not_finite, sizeof *word, 0), first = 0;
    uint32_t *word_first = cuda_copy_of(&first, sizeof first, 0);
    char *rows = malloc(p->y_bytes + 1);
    for (uint32_t from = 0, n; from < p->rows; from += n) {
        n = cut ? state_draw(1, p->rows - from) : p->rows;
        call_gpu(&g, is_conv, true, states, from, from + n, y_first, word_first);
        call_gpu(&g, is_conv, false, states, from, from + n, y, word);
    }
    for (uint32_t i = 0; i < p->n_parts; i++)
        cuda_take_back(w.states[i], states[i], bytes, 0);
    cuda_take_back(w.y, y, p->y_bytes, 0);
    cuda_take_back(rows, y_first, p->y_bytes, 0);
    cuda_take_back(&w.not_finite, word, sizeof *word, 0);
    cuda_take_back(&first, word_first, sizeof first, 0);
    CHECK(!memcmp(rows, w.y, p->y_bytes) && !first);
    free(rows);
    off_gpu(&g);
    return w;
}

static struct state_written run_on_cpu(const struct state_problem *p, bool is_conv)
{
    const struct spw_cpu_kernels *table = spw_cpu_kernels_get(SPW_ISA_PORTABLE);
    struct state_written w = state_written_init(p);
    struct spw_conv_args conv = p->a.conv;
    struct spw_recur_args recur = p->a.recur;
    if (is_conv) {
        conv.n_parts = state_cut_parts(p, w.states, 0, p->rows, conv.parts);
        conv.y = w.y;
        each_run(table->conv, &conv, EACH_FORWARD);
    } else {
        recur.n_parts = state_cut_parts(p, w.states, 0, p->rows, recur.parts);
        recur.y = w.y, recur.not_finite = &w.not_finite;
        each_run(table->recur, &recur, EACH_FORWARD);
    }
    return w;
}

static void test_same(struct state_problem *p, bool is_conv)
{
    struct state_written want = run_on_cpu(p, is_conv);
    for (int cut = 0; cut < 2; cut++) {
        struct state_written got = run_on_gpu(p, is_conv, cut);
        CHECK_MSG(state_written_same(p, &got, &want), "cut %d: %s", cut,
                  is_conv ? conv_text(p) : recur_text(p));
        state_written_free(&got);
    }
    state_written_free(&want);
    state_problem_free(p);
    free(p);
}

static void test_not_finite(enum spw_mixer_kind kind)
{
    struct state_problem *p = recur_problem_draw(kind);
    const struct spw_recur_args *a = &p->a.recur;
    const size_t v =
        state_draw(0, p->rows - 1) * a->v_stride + state_draw(0, a->heads * a->value_dim - 1);
    each_store((void *)(uintptr_t)a->v, v, a->dtype, state_draw(0, 1) ? NAN : INFINITY);
    struct state_written got = run_on_gpu(p, false, true);
    CHECK_MSG(got.not_finite == 1, "%s", recur_text(p));
    state_written_free(&got);
    state_problem_free(p);
    free(p);
}

/* A row alone gives the bits of rows together. */
static void test_gated_norm(void)
{
    struct state_problem *p = gated_norm_problem_draw();
    const size_t rows = p->rows, bytes = p->y_bytes / rows, row = state_draw(0, p->rows - 1);
    char *y = malloc(p->y_bytes), *alone = malloc(bytes);
    struct on_gpu g;
    to_gpu(&g, p, spw_dtype_bytes(p->a.norm.dtype));
    struct spw_gated_norm_args a = g.p.a.norm;
    a.y = cuda_copy_of(y, p->y_bytes, 0);
    CHECK(!spw_gated_norm_cuda(&a, NULL));
    cuda_take_back(y, a.y, p->y_bytes, 0);
    const size_t wrong = gated_norm_wrong(p, y);
    CHECK_MSG(!wrong, "%s: %zu wrong", gated_norm_text(p), wrong);
    a.y = cuda_copy_of(alone, bytes, 0);
    a.rows = 1;
    a.x = (const char *)a.x + row * a.n_groups * a.cols * spw_dtype_bytes(a.x_dtype);
    a.gate = (const char *)a.gate + row * a.gate_stride * spw_dtype_bytes(a.dtype);
    CHECK(!spw_gated_norm_cuda(&a, NULL));
    cuda_take_back(alone, a.y, bytes, 0);
    CHECK_MSG(!memcmp(alone, y + row * bytes, bytes), "%s", gated_norm_text(p));
    off_gpu(&g);
    free(y), free(alone);
    state_problem_free(p);
    free(p);
}

static void test_refused(void)
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

int main(void)
{
    static const enum spw_mixer_kind kinds[] = {SPW_MIXER_DELTA, SPW_MIXER_SSD, SPW_MIXER_SCAN,
                                                SPW_MIXER_LRU};
    if (!cuda_there())
        return CHECK_SKIP;
    state_rng = check_seed();
    for (int i = 0, draws = check_full() ? 60 : 6; i < draws; i++) {
        for (int k = 0; k < 4; k++) {
            test_same(recur_problem_draw(kinds[k]), false);
            test_not_finite(kinds[k]);
        }
        test_same(conv_problem_draw(), true);
        for (int j = 0; j < 4; j++)
            test_gated_norm();
    }
    test_refused();
    return check_done();
}
