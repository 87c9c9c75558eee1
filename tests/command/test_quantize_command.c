/* `spillway quantize`: the file against one that the tests' own writer makes of the same folder,
 * with all numbers in F32; the config and the tokens against those of the folder; the loss on a
 * text. What the command prints, and that nothing is left after a failure: quantize.cases. */
#include "tests/engine/gguf_folder.h" /* before `out`: its functions have parameters of that name */

#include "model/quantize.h"
#include "model/weights/weights.h"
#include "quant/pack.h"
#include "tests/command/cases.h"
#include "tests/command/command_model.h"

static const char *const goldens[] = {
    "llama_plain",        "llama_biases",        "llama_f16",
    "llama_linear",       "llama_mha_tied",      "llama_odd_sizes",
    "llama_mqa_head_dim", "mistral_window",      "llama_llama3_new_keys",
    "qwen2_bias",         "qwen2_yarn",          "qwen3_qk_norm",
    "gemma3_new_keys",    "gemma3_wrapped",      "gemma3_window_140",
    "starcoder2_plain",   "cohere_plain",        "cohere2_listed",
    "stablelm_plain",     "olmo_clip",           "phi_plain",
    "ministral3_grows",   "qwen3_moe_plain",     "qwen2_moe_shared",
    "olmoe_plain",        "gemma4_global_heads", "gemma4_shared",
    "olmo3_pattern",      "glm_plain",           "phi3_long_short",
    "phi3_long_long",     "hunyuan_plain",       "arcee_plain",
    "nemotron_bias",      "muse_glimmer_plain",  "qwen3_5_plain",
    "qwen3_next_plain",   "lfm2_rounded",        "lfm2_moe_plain",
};

/* Experts in every form that folders have; and mlps under the names of shared ones. */
static const char *const with_experts[] = {
    "mixtral_all_kept",
    "mixtral_joined",
    "qwen2_moe_shared",
    "qwen3_moe_plain",
    "olmoe_clip",
    "granitemoe_plain",
    "glm4_moe_plain",
    "glm4_moe_norms",
    "gpt_oss_plain",
    "gpt_oss_mxfp4",
    "gemma4_moe",
    "gemma4_moe_all",
    "granitemoeshared_plain",
    "granitemoehybrid_plain",
    "ernie4_5_moe_plain",
    "minimax_m2_plain",
    "dots1_plain",
    "hunyuan_moe_plain",
};

static struct spw_tensors *open_tensors(const char *path)
{
    struct spw_source *s;
    struct spw_tensors *t = NULL;
    struct spw_error e = {0};
    int rc = spw_source_open(&s, path, &e);
    rc = rc ? rc : s->ops->tensors(s, &t, &e);
    CHECK_MSG(!rc, "%s", e.text);
    spw_source_close(s);
    return t;
}

/* ---- the file ---- */

/* Every stored number is the nearest one that a block has, or the scale's rounding away. */
static void check_numbers(const struct spw_tensor *t, const float *x, const float *stored, size_t n)
{
    const double steps = t->dtype == SPW_DTYPE_Q8_0 ? 127 : 8;
    for (size_t i = 0; i < n; i += 32) {
        double largest = 0;
        for (size_t k = i; k < i + 32; k++)
            largest = fmax(largest, fabs((double)x[k]));
        /* -8 .. 7: the largest number of the other sign may be a whole step away. */
        const double step = largest / steps * (t->dtype == SPW_DTYPE_Q8_0 ? 0.5 : 1);
        for (size_t k = i; k < i + 32; k++)
            CHECK_MSG(fabs((double)stored[k] - (double)x[k]) <= step + largest * 0x1p-10 + 0x1p-17,
                      "%s[%zu]: %g, stored as %g", t->name, k, (double)x[k], (double)stored[k]);
    }
}

static void check_tensor(const struct spw_tensor *t, const struct spw_tensor *plain,
                         enum spw_dtype type)
{
    CHECK_MSG(plain && plain->n_dims == t->n_dims &&
                  !memcmp(plain->shape, t->shape, t->n_dims * sizeof *t->shape),
              "%s", t->name);
    if (!plain)
        return;
    const size_t n = plain->bytes / sizeof(float);
    const float *x = plain->data;
    const bool matrix = t->n_dims == 3 || gguf_is_matrix(t);
    const bool whole = matrix && t->shape[t->n_dims - 1] % 32 == 0;
    float *stored = malloc(n * sizeof *stored);
    spw_type_read(t->dtype, t->data, 0, n, stored);
    CHECK_MSG(matrix || t->dtype == SPW_DTYPE_F32, "%s", t->name);
    CHECK_MSG((t->dtype == type) == whole, "%s: %s", t->name, t->dtype_name);
    if (!whole)
        CHECK_MSG(!memcmp(stored, x, n * sizeof *x), "%s", t->name);
    else {
        uint8_t *packed = malloc(t->bytes);
        spw_type_write(type, x, n, packed);
        CHECK_MSG(!memcmp(packed, t->data, t->bytes), "%s", t->name);
        free(packed);
        check_numbers(t, x, stored, n);
    }
    free(stored);
}

static void check_same_config(const char *model, const char *file)
{
    struct spw_model_config a, b;
    struct spw_error e = {0};
    CHECK(!source_config(&a, model, &e));
    CHECK_MSG(!source_config(&b, file, &e), "%s", e.text);
    const struct spw_rope_config *x = &a.rope[0], *y = &b.rope[0];
    CHECK_MSG(a.n_layers == b.n_layers && a.hidden == b.hidden && a.vocab == b.vocab &&
                  a.intermediate == b.intermediate && a.n_heads == b.n_heads &&
                  !memcmp(a.kv, b.kv, sizeof a.kv) && a.act == b.act &&
                  a.max_positions == b.max_positions && a.qk_norm == b.qk_norm &&
                  a.sandwich == b.sandwich && a.qkv_bias == b.qkv_bias && a.bos == b.bos,
              "%s", model);
    CHECK_MSG(fabsf(a.rms_eps - b.rms_eps) <= 1e-6f * a.rms_eps &&
                  fabsf(a.attention_scale - b.attention_scale) <= 1e-6f * a.attention_scale &&
                  a.logit_softcap == b.logit_softcap && a.embedding_scale == b.embedding_scale,
              "%s", model);
    CHECK_MSG(a.norm == b.norm && a.parallel == b.parallel && a.plain_mlp == b.plain_mlp &&
                  a.norm_bias == b.norm_bias && a.qkv_limit == b.qkv_limit &&
                  fabsf(a.logit_divisor - b.logit_divisor) <= 1e-6f * a.logit_divisor &&
                  a.query_growth.beta == b.query_growth.beta &&
                  a.query_growth.base == b.query_growth.base &&
                  !memcmp(a.rotates, b.rotates, a.n_layers) &&
                  !memcmp(a.kv_layers, b.kv_layers, a.n_layers * sizeof *a.kv_layers) &&
                  !memcmp(a.v_is_k, b.v_is_k, sizeof a.v_is_k) &&
                  a.wide_readers == b.wide_readers && a.layer_inputs == b.layer_inputs &&
                  a.layer_scales == b.layer_scales && a.attention_gate == b.attention_gate &&
                  a.normed_rows == b.normed_rows && a.post_eps == b.post_eps &&
                  fabs(x->attention_factor - y->attention_factor) <= 1e-6,
              "%s", model);
    CHECK_MSG((float)x->theta == (float)y->theta && x->rotary_dim == y->rotary_dim &&
                  (x->kind == SPW_ROPE_LLAMA3 || x->kind == SPW_ROPE_PROPORTIONAL
                       ? y->kind == SPW_ROPE_FACTORS
                   : x->kind == SPW_ROPE_LONG
                       ? y->kind == SPW_ROPE_LONG && /* factors are tensors */
                             x->original_max_positions == y->original_max_positions
                       : x->kind == y->kind && x->factor == y->factor),
              "%s", model);
    if (strstr(model, "mistral"))
        CHECK(a.window && !b.window);
    else
        CHECK_MSG(a.window == b.window && !memcmp(a.layer_kinds, b.layer_kinds, a.n_layers) &&
                      (float)a.rope[1].theta == (float)b.rope[1].theta,
                  "%s", model);
    spw_config_free(&a);
    spw_config_free(&b);
}

static void test_golden(const char *name, enum spw_dtype type)
{
    char model[128];
    const char *file = in_folder("q.gguf"), *plain = in_folder("plain.gguf");
    snprintf(model, sizeof model, "tests/golden/%s", name);
    CHECK_MSG(sh("rm -f q.gguf; $S quantize $REPOSITORY/%s q.gguf --type %s", model,
                 spw_dtype_name(type)) == 0,
              "%s: %s", name, err);
    CHECK(gguf_from_folder(model, plain, &(struct gguf_way){.matrices = SPW_DTYPE_F32}));
    struct spw_tensors *a = open_tensors(file), *b = open_tensors(plain);
    CHECK(a && b && spw_tensors_count(a) == spw_tensors_count(b));
    for (size_t i = 0; a && b && i < spw_tensors_count(a); i++) {
        const struct spw_tensor *t = spw_tensors_at(a, i);
        check_tensor(t, spw_tensors_find(b, t->name), type);
    }
    spw_tensors_close(a);
    spw_tensors_close(b);
    check_same_config(model, file);
}

/* ---- experts ---- */

/* A row of a matrix, in F32. */
static void read_row(const struct spw_weights *w, const struct spw_matrix *m, uint64_t row,
                     float to[256])
{
    uint8_t packed[1024];
    CHECK(m->k <= 256);
    spw_weights_pack_row(w, m, row, packed);
    spw_type_read(m->type, packed, 0, m->k, to);
}

/* A matrix of the file: that of the folder in the type of the file, MXFP4 as it was. */
static void check_matrix(const struct spw_weights *folder_of, const struct spw_matrix *a,
                         const struct spw_weights *file, const struct spw_matrix *m,
                         enum spw_dtype type)
{
    const bool parts = a->form == SPW_FORM_PARTS, whole = a->k % 32 == 0;
    CHECK(a->n == m->n && a->k == m->k && a->layer == m->layer && a->role == m->role);
    CHECK(m->tensor->dtype == (parts ? SPW_DTYPE_MXFP4 : whole ? type : a->type));
    for (uint64_t r = 0; r < m->n; r++) {
        float x[256], y[256];
        uint8_t blocks[1024];
        read_row(folder_of, a, r, x);
        read_row(file, m, r, y);
        if (whole && !parts) {
            spw_type_write(type, x, m->k, blocks);
            spw_type_read(type, blocks, 0, m->k, x);
        }
        CHECK_MSG(!memcmp(x, y, m->k * sizeof *x), "%s %d: %g %g", m->tensor->name, (int)r,
                  (double)x[0], (double)y[0]);
    }
}

/* Those of mlps, shared experts and experts. Matrices of attention may have another order of rows.
 */
static void check_matrices(const struct spw_weights *folder_of, const struct spw_weights *file,
                           enum spw_dtype type)
{
    CHECK(folder_of->n_blocks == file->n_blocks &&
          folder_of->n_expert_blocks == file->n_expert_blocks);
    for (uint32_t b = 0; b < file->n_blocks + file->n_expert_blocks; b++) {
        const struct spw_weight_block *x = &folder_of->blocks[b], *y = &file->blocks[b];
        CHECK(x->n == y->n && x->layer == y->layer);
        for (uint32_t i = 0; i < x->n && x->layer != SPW_NO_LAYER; i++)
            if (folder_of->matrices[x->first + i].role >= SPW_MATRIX_GATE)
                check_matrix(folder_of, &folder_of->matrices[x->first + i], file,
                             &file->matrices[y->first + i], type);
    }
}

/* Experts, routers, biases and the choice itself. */
static void test_experts(const char *name, enum spw_dtype type)
{
    char model[128];
    const char *file = in_folder("e.gguf");
    struct spw_model_config a, b;
    struct spw_weights *w[2];
    struct spw_error e = {0};
    snprintf(model, sizeof model, "tests/golden/%s", name);
    CHECK_MSG(sh("rm -f e.gguf; $S quantize $REPOSITORY/%s e.gguf --type %s", model,
                 spw_dtype_name(type)) == 0,
              "%s: %s", name, err);
    struct spw_tensors *t[2] = {open_tensors(model), open_tensors(file)};
    CHECK(!source_config(&a, model, &e) && !source_config(&b, file, &e));
    CHECK_MSG(!memcmp(a.has_experts, b.has_experts, a.n_layers), "%s", name);
    const struct spw_experts_config *x = &a.experts, *y = &b.experts;
    CHECK_MSG(x->n == y->n && x->n_kept == y->n_kept && x->intermediate == y->intermediate &&
                  x->shared_intermediate == y->shared_intermediate &&
                  x->shared_gate == y->shared_gate && x->route.score == y->route.score &&
                  x->route.renormalizes == y->route.renormalizes &&
                  fabsf(x->route.scale - y->route.scale) <= 1e-6f * x->route.scale,
              "%s", name);
    CHECK_MSG(!spw_weights_open(&w[0], &a, t[0], SPW_DTYPE_F32, &e), "%s", e.text);
    CHECK_MSG(!spw_weights_open(&w[1], &b, t[1], SPW_DTYPE_F32, &e), "%s", e.text);
    check_matrices(w[0], w[1], type);
    for (int i = 0; i < 2; i++)
        CHECK(!spw_weights_prepare(w[i], &e));
    /* the file may have factors of rope before the frequencies, which are the same */
    const uint64_t before = w[0]->no_freq, after = w[0]->n_small - before;
    CHECK_MSG(w[1]->n_small - w[1]->no_freq == after &&
                  w[1]->no_freq ==
                      before +
                          (w[1]->rope_factors == SPW_SMALL_NONE ? 0 : b.rope[0].rotary_dim / 2) &&
                  !memcmp(w[0]->small, w[1]->small, before * sizeof(float)) &&
                  !memcmp(w[0]->small + before, w[1]->small + w[1]->no_freq, after * sizeof(float)),
              "%s", name);
    for (int i = 0; i < 2; i++) {
        spw_weights_close(w[i]);
        spw_tensors_close(t[i]);
    }
    spw_config_free(&a);
    spw_config_free(&b);
}

/* ---- the tokenizer ---- */

static void test_tokens(const char *model)
{
    static const char *const texts[] = {"Hello there, 1234 times!\\n", "  two  spaces", "a\\tb"};
    char tokens[1 << 12];
    CHECK_MSG(sh("rm -f t.gguf; $S quantize %s t.gguf --type q8_0", model) == 0, "%s", err);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        sh("printf '%s' >text; $S tokenize %s --text-file text", texts[i], model);
        snprintf(tokens, sizeof tokens, "%.4000s", out);
        CHECK_MSG(sh("$S tokenize t.gguf --text-file text") == 0 && !strcmp(tokens, out), "%s: %s",
                  model, err);
    }
}

/* ---- what the command prints ---- */

static void test_output(void)
{
    CHECK(sh("rm q.gguf; $S quantize m q.gguf --type q8_0 --json") == 0);
    json_t *j = json_loads(out, 0, NULL);
    const json_t *tensors = json_object_get(j, "tensors"), *t;
    json_int_t bytes = 0;
    size_t i;
    json_array_foreach(tensors, i, t)
    {
        const bool exact = strcmp(json_string_value(json_object_get(t, "type")), "q8_0") != 0;
        const double error = json_real_value(json_object_get(t, "relative_error"));
        CHECK(exact ? error == 0 : error > 1e-3 && error < 1e-2);
        CHECK(exact == json_is_string(json_object_get(t, "why")));
        bytes += json_integer_value(json_object_get(t, "bytes"));
    }
    CHECK(json_array_size(tensors) == 30 &&
          bytes == json_integer_value(json_object_get(j, "weights_bytes")));
    json_decref(j);
}

/* ---- the loss on a text ---- */

static double score(const char *model)
{
    CHECK_MSG(sh("$S score %s --text-file text --device cpu --json", model) == 0, "%s", err);
    json_t *j = parse(out);
    const double loss = json_real_value(json_object_get(j, "nats_per_token"));
    CHECK(loss > 0);
    json_decref(j);
    return loss;
}

/* What score says of the folder and of the file. */
static void test_loss(void)
{
    char line[64];
    CHECK(sh("for i in $(seq 1 12); do echo \"line $i of a text\"; done >text") == 0);
    CHECK(sh("$S quantize m loss.gguf --type q4_0 --text-file text --json") == 0);
    json_t *j = parse(out), *loss = json_object_get(j, "loss");
    const double before = json_real_value(json_object_get(loss, "model_nats_per_token"));
    const double after = json_real_value(json_object_get(loss, "output_nats_per_token"));
    const double percent = json_real_value(json_object_get(loss, "difference_percent"));
    CHECK(before == score("m") && after == score("loss.gguf") && before != after);
    CHECK(fabs(percent - 100 * (after / before - 1)) < 1e-9);
    CHECK(number(loss, "n_tokens") == number(loss, "n_scored") + 1);
    CHECK(!strcmp(json_string_value(json_object_get(loss, "text_file")), "text"));
    snprintf(line, sizeof line, "%.6f nats/token of m, %.6f of loss.gguf: %+.2f %%\n", before,
             after, percent);
    CHECK(sh("rm loss.gguf; $S quantize m loss.gguf --type q4_0 --text-file text") == 0 &&
          strstr(out, line));
    snprintf(line, sizeof line, "loss on %lld tokens (", number(loss, "n_tokens"));
    CHECK_MSG(strstr(out, line), "%s", out);
    const char *note = strstr(err, "on cpu");
    CHECK_MSG(note && !strstr(note + 1, "on cpu"), "%s", err); /* once */
    json_decref(j);
    CHECK(sh("rm loss.gguf; $S quantize m loss.gguf --type q4_0 --json") == 0 &&
          !strstr(out, "loss\":"));
}

/* ---- failures ---- */

/* A number that no block can hold. */
static void test_infinite(void)
{
    const uint16_t infinite = 0x7f80;
    CHECK(sh("rm -rf bad w; mkdir w; cp -r m bad") == 0);
    struct spw_tensors *t = open_tensors(in_folder("bad"));
    const struct spw_tensor *v =
        t ? spw_tensors_find(t, "model.layers.0.mlp.up_proj.weight") : NULL;
    CHECK(v && v->dtype == SPW_DTYPE_BF16);
    FILE *f = v ? fopen(v->file, "r+b") : NULL;
    CHECK(f && !fseek(f, (long)v->file_offset + 40, SEEK_SET) &&
          fwrite(&infinite, sizeof infinite, 1, f) == 1 && !fclose(f));
    spw_tensors_close(t);
    CHECK(sh("$S quantize bad w/q.gguf --type q8_0; rc=$?; test -z \"$(ls -A w)\" && exit $rc") ==
          2);
    CHECK_MSG(strstr(err,
                     "model.layers.0.mlp.up_proj.weight: found the number inf, expected numbers "
                     "that q8_0"),
              "%s", err);
}

static bool stop(void *context, uint64_t done, uint64_t total)
{
    (void)total;
    return done < *(const uint64_t *)context;
}

/* The library: an interrupt, and every allocation that fails. */
static void test_library(void)
{
    uint64_t at = 1;
    struct spw_error e = {0};
    struct spw_quantize_options o = {
        .type = SPW_DTYPE_Q8_0, .to = tmpfile(), .context = &at, .on_progress = stop};
    const char *model = in_folder("m");
    CHECK(spw_quantize(model, &o, &e) == -ECANCELED);
    o.on_progress = NULL;
    int rc = -ENOMEM;
    for (int64_t n = 0; rc == -ENOMEM && n < 10000; n++) {
        rewind(o.to);
        spw_alloc_fail_nth(n);
        rc = spw_quantize(model, &o, &e);
        spw_alloc_fail_nth(-1);
        CHECK_MSG(!rc || (rc == -ENOMEM && e.text[0]), "allocation %d: %d %s", (int)n, rc, e.text);
    }
    CHECK(!rc);
    o.type = SPW_DTYPE_Q4_1;
    CHECK(spw_quantize(model, &o, &e) == -EINVAL);
    fclose(o.to);
}

int main(void)
{
    if (!command_is_there())
        return CHECK_SKIP;
    command_model("quantize");
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++)
        test_golden(goldens[i], i % 2 ? SPW_DTYPE_Q4_0 : SPW_DTYPE_Q8_0);
    for (size_t i = 0; i < sizeof with_experts / sizeof *with_experts; i++)
        test_experts(with_experts[i], i % 2 ? SPW_DTYPE_Q4_0 : SPW_DTYPE_Q8_0);
    CHECK(sh("cp -r $REPOSITORY/models/records records") == 0);
    test_tokens("m");
    test_tokens("records");
    run_cases("quantize", "no tokenizer");
    run_cases("quantize", "output");
    test_output();
    test_loss();
    run_cases("quantize", "refused");
    run_cases("quantize", "old file");
    test_infinite();
    test_library();
    sh("cd / && rm -rf %s", folder);
    return check_done();
}
