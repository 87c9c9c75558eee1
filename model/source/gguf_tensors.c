/* The tensors of a GGUF model, in one file or in several: see gguf_model.h.
 *
 * Several files have the names NAME-00001-of-00003.gguf and so on. The first one has the keys of
 * the model; each has tensors, and the keys split.no (from 0), split.count and split.tensors.count
 * (of all files). */
#include "model/source/gguf_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- names ---- */

/* `sandwich`: the name where a layer has four norms; NULL: the same. */
static const struct {
    const char *gguf, *plain, *sandwich;
} layer_names[] = {
    {"attn_norm", "input_layernorm", NULL},
    {"attn_q", "self_attn.q_proj", NULL},
    {"attn_k", "self_attn.k_proj", NULL},
    {"attn_qkv", "self_attn.qkv_proj", NULL},
    {"attn_v", "self_attn.v_proj", NULL},
    {"attn_output", "self_attn.o_proj", NULL},
    {"attn_out", "self_attn.o_proj", NULL}, /* as Ollama's gptoss has it */
    {"attn_q_norm", "self_attn.q_norm", NULL},
    {"attn_k_norm", "self_attn.k_norm", NULL},
    {"ffn_norm", "post_attention_layernorm", "pre_feedforward_layernorm"},
    {"post_attention_norm", "post_attention_layernorm", NULL},
    {"post_ffw_norm", "post_feedforward_layernorm", NULL},
    {"ffn_gate", "mlp.gate_proj", NULL},
    {"ffn_up", "mlp.up_proj", NULL},
    {"ffn_down", "mlp.down_proj", NULL},
    {"ffn_gate_inp", "mlp.gate", NULL}, /* the router; stacked experts; the shared expert */
    {"ffn_gate_exps", "mlp.experts.gate_proj", NULL},
    {"ffn_up_exps", "mlp.experts.up_proj", NULL},
    {"ffn_gate_up_exps", "mlp.experts.gate_up_proj", NULL},
    {"ffn_down_exps", "mlp.experts.down_proj", NULL},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj", NULL},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj", NULL},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj", NULL},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate", NULL},
    {"pre_ffw_norm_2", "pre_feedforward_layernorm_2", NULL}, /* experts beside an mlp */
    {"post_ffw_norm_1", "post_feedforward_layernorm_1", NULL},
    {"post_ffw_norm_2", "post_feedforward_layernorm_2", NULL},
    {"inp_gate", "per_layer_input_gate", NULL}, /* numbers that each layer gets of a row */
    {"proj", "per_layer_projection", NULL},
    {"post_norm", "post_per_layer_input_norm", NULL},
};

static const struct {
    const char *gguf, *hf;
} model_names[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output_norm.bias", "model.norm.bias"},
    {"output.weight", "lm_head.weight"},
    {"output.bias", "lm_head.bias"},
    {"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
    {"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
    {"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"},
    {"rope_freqs.weight", SPW_ROPE_FACTORS_NAME},
    {"rope_factors_short.weight", SPW_ROPE_SHORT_NAME},
    {"rope_factors_long.weight", SPW_ROPE_LONG_NAME},
};

/* Tensors of layers that folders call otherwise than the table above. Names that this table does
 * not have are read by its first row for them. */
static const struct {
    const char *gguf, *folder;
} other_names[] = {
    {"attn_sinks.weight", "self_attn.sinks"},
    {"attn_sinks", "self_attn.sinks"}, /* as Ollama's gptoss has it */
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {"ffn_gate_inp.weight", "mlp.router.weight"},
    {"ffn_gate_inp.bias", "mlp.router.bias"},
    {"ffn_gate_inp.weight", "mlp.gate.wg.weight"},
    {"ffn_gate_inp.weight", "block_sparse_moe.gate.weight"},
    {"ffn_gate_inp.weight", "block_sparse_moe.router.weight"},
    {"ffn_gate_inp.weight", "block_sparse_moe.router.layer.weight"},
    {"ffn_gate_inp.weight", "router.proj.weight"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"ffn_gate_inp.per_expert_scale", "router.per_expert_scale"}, /* as Ollama's gemma4 has it */
    {"layer_output_scale.weight", "layer_scalar"},
    {"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"},
    {"ffn_gate_shexp.weight", "mlp.shared_mlp.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_mlp.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_mlp.down_proj.weight"},
    {"ffn_gate_exps.bias", "mlp.experts.gate_up_proj_bias"}, /* alternates with that of up */
    {"ffn_down_exps.bias", "mlp.experts.down_proj_bias"},
};

/* The name of row i in a folder of this architecture; NULL: there is no such tensor. */
static const char *folder_name(const struct spw_gguf_architecture *a, size_t i)
{
    if (a->late_norms && !strcmp(layer_names[i].gguf, "ffn_norm"))
        return NULL;
    if (a->glm_norms && !strcmp(layer_names[i].gguf, "post_attention_norm"))
        return "post_self_attn_layernorm";
    if (a->glm_norms && !strcmp(layer_names[i].gguf, "post_ffw_norm"))
        return "post_mlp_layernorm";
    if (a->joined && !strcmp(layer_names[i].gguf, "ffn_up"))
        return "mlp.gate_up_proj";
    return a->sandwich && layer_names[i].sandwich ? layer_names[i].sandwich : layer_names[i].plain;
}

/* The name in a folder of a tensor of a layer, without the number of the layer. */
static bool name_in_layer(const struct spw_gguf_architecture *a, const char *name, char out[96])
{
    const char *end = strrchr(name, '.');
    const bool usual = end && (!strcmp(end, ".weight") || !strcmp(end, ".bias"));
    const size_t n = usual ? (size_t)(end - name) : 0;
    for (size_t i = 0; n && i < sizeof layer_names / sizeof *layer_names; i++) {
        const char *hf = folder_name(a, i);
        if (!hf || strlen(layer_names[i].gguf) != n || memcmp(name, layer_names[i].gguf, n) != 0)
            continue;
        snprintf(out, 96, "%s%s", hf, end);
        return true;
    }
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++)
        if (!strcmp(name, other_names[i].gguf)) {
            snprintf(out, 96, "%s", other_names[i].folder);
            return true;
        }
    if (strncmp(name, "nextn.", 6) != 0 || !usual)
        return false;
    snprintf(out, 96, "%.64s", name); /* of layers that are not used */
    return true;
}

/* "blk.12.attn_q.weight" is layer 12, "attn_q.weight". */
static bool layer_name(const struct spw_gguf_architecture *a, const char *name,
                       char out[SPW_GGUF_MOST_HF_NAME])
{
    unsigned layer;
    int at = 0;
    char number[16], hf[96];
    if (sscanf(name, "blk.%5u.%n", &layer, &at) != 1 || !at)
        return false;
    snprintf(number, sizeof number, "blk.%u.", layer);
    if (strncmp(name, number, (size_t)at) != 0 || !name_in_layer(a, name + at, hf))
        return false;
    snprintf(out, SPW_GGUF_MOST_HF_NAME, "model.layers.%u.%s", layer, hf);
    return true;
}

bool spw_gguf_is_other_part(const char *name)
{
    return !strncmp(name, "v.", 2) || !strncmp(name, "a.", 2) || !strncmp(name, "mm.", 3);
}

bool spw_gguf_hf_name(const struct spw_gguf_architecture *a, const char *name,
                      char out[SPW_GGUF_MOST_HF_NAME])
{
    if (spw_gguf_is_other_part(name)) {
        snprintf(out, SPW_GGUF_MOST_HF_NAME, "%s", name);
        return true;
    }
    for (size_t i = 0; i < sizeof model_names / sizeof *model_names; i++) {
        if (strcmp(name, model_names[i].gguf) != 0)
            continue;
        snprintf(out, SPW_GGUF_MOST_HF_NAME, "%s", model_names[i].hf);
        return true;
    }
    return layer_name(a, name, out);
}

bool spw_gguf_name(const struct spw_gguf_architecture *a, const char *hf_name,
                   char out[SPW_GGUF_MOST_NAME + 1])
{
    unsigned layer;
    int at = 0;
    for (size_t i = 0; i < sizeof model_names / sizeof *model_names; i++)
        if (!strcmp(hf_name, model_names[i].hf)) {
            snprintf(out, SPW_GGUF_MOST_NAME + 1, "%s", model_names[i].gguf);
            return true;
        }
    const char *end = strrchr(hf_name, '.');
    if (sscanf(hf_name, "model.layers.%5u.%n", &layer, &at) != 1 || !at)
        return false;
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++)
        if (!strcmp(hf_name + at, other_names[i].folder)) {
            snprintf(out, SPW_GGUF_MOST_NAME + 1, "blk.%u.%s", layer, other_names[i].gguf);
            return true;
        }
    if (end < hf_name + at || (strcmp(end, ".weight") != 0 && strcmp(end, ".bias") != 0))
        return false;
    const size_t n = (size_t)(end - hf_name) - (size_t)at;
    for (size_t i = 0; i < sizeof layer_names / sizeof *layer_names; i++) {
        const char *hf = folder_name(a, i);
        if (a->post_attention_norm && !strcmp(layer_names[i].gguf, "ffn_norm"))
            continue;
        if (!hf || strlen(hf) != n || memcmp(hf_name + at, hf, n) != 0)
            continue;
        snprintf(out, SPW_GGUF_MOST_NAME + 1, "blk.%u.%s%s", layer, layer_names[i].gguf, end);
        return true;
    }
    return false;
}

static int rename_all(struct spw_tensor_table *table, const struct spw_gguf_architecture *a,
                      const char *path, struct spw_error *err)
{
    enum { HF = SPW_GGUF_MOST_HF_NAME, OWN = SPW_GGUF_MOST_NAME + 1 };
    char *names = spw_alloc(table->n * (HF + OWN));
    if (!names)
        return spw_fail(err, -ENOMEM, "%s: out of memory", path);
    int rc = 0;
    for (size_t i = 0; i < table->n && !rc; i++) {
        char *name = names + i * (HF + OWN), *own = name + HF;
        snprintf(own, OWN, "%s", table->tensors[i].name);
        if (!spw_gguf_hf_name(a, own, name))
            rc = spw_fail(err, -EINVAL,
                          "%s: tensor %s: found it, but models of architecture %s have no such "
                          "tensor; expected those of a language model that this program computes",
                          path, own, a->name);
        table->tensors[i].name = name;
        table->tensors[i].own_name = own;
    }
    spw_free(table->names);
    table->names = names;
    return rc;
}

/* ---- files ---- */

struct split {
    uint64_t number, count, n_tensors; /* n_tensors 0: the file does not say */
};

static int read_split(const struct spw_gguf *g, const char *path, struct split *out,
                      struct spw_error *err)
{
    json_t *object;
    if (spw_gguf_object(g, "split.", &object))
        return spw_fail(err, -ENOMEM, "%s: out of memory", path);
    struct spw_keys keys = {.file = path, .prefix = "split.", .object = object, .err = err};
    *out = (struct split){.count = 1};
    int rc = spw_keys_u64(&keys, "no", 0, 99998, &out->number);
    if (!rc)
        rc = spw_keys_u64(&keys, "count", 0, 99999, &out->count);
    if (!rc)
        rc = spw_keys_u64(&keys, "tensors.count", 0, INT32_MAX, &out->n_tensors);
    out->count = spw_max_u64(out->count, 1);
    json_decref(object);
    return rc;
}

/* What the reader of a file must know. */
struct expected {
    const struct spw_gguf_architecture *architecture;
    uint64_t number, count;
};

static int read_file(struct spw_tensor_table *out, uint64_t *header_bytes, const uint8_t *base,
                     uint64_t bytes, const char *path, const void *context, struct spw_error *err)
{
    const struct expected *e = context;
    struct spw_gguf g;
    struct split split = {0};
    SPW_TRY(spw_gguf_parse(&g, base, bytes, path, err));
    int rc = read_split(&g, path, &split, err);
    if (!rc && (split.number != e->number || split.count != e->count))
        rc = spw_fail(err, -EINVAL,
                      "%s: found file %" PRIu64 " of %" PRIu64 ", expected file %" PRIu64
                      " of %" PRIu64,
                      path, split.number + 1, split.count, e->number + 1, e->count);
    if (!rc)
        rc = rename_all(&g.tensors, e->architecture, path, err);
    if (!rc) {
        *out = g.tensors;
        *header_bytes = g.header_bytes;
        g.tensors = (struct spw_tensor_table){0};
    }
    spw_gguf_free(&g);
    return rc;
}

/* The path of file `number` (from 0), owned by the caller; NULL when out of memory. */
static char *path_of(const char *first, const struct split *split, uint64_t number)
{
    char *path = spw_strdup(first), name[64];
    if (!path || split->count == 1)
        return path;
    snprintf(name, sizeof name, "-%05" PRIu64 "-of-%05" PRIu64 ".gguf", number + 1, split->count);
    memcpy(path + strlen(path) - strlen(name), name, strlen(name));
    return path;
}

/* The files of a model must have the names that lead to each other. */
static int check_first(const char *path, const struct split *split, struct spw_error *err)
{
    char end[64];
    if (split->count == 1)
        return 0;
    snprintf(end, sizeof end, "-%05d-of-%05" PRIu64 ".gguf", 1, split->count);
    size_t n = strlen(end), all = strlen(path);
    if (split->number == 0 && all >= n && !strcmp(path + all - n, end))
        return 0;
    return spw_fail(err, -EINVAL,
                    "%s: found file %" PRIu64 " of %" PRIu64
                    ", expected the first one, with a name that ends with %s",
                    path, split->number + 1, split->count, end);
}

static int add_files(struct spw_tensors *t, const char *path, const struct split *split,
                     const struct spw_gguf_architecture *architecture, struct spw_error *err)
{
    for (uint64_t i = 0; i < split->count; i++) {
        const struct expected e = {architecture, i, split->count};
        char *its = path_of(path, split, i);
        if (!its)
            return spw_fail(err, -ENOMEM, "%s: out of memory", path);
        int rc = spw_tensors_add(t, its, SPW_GGUF_LEAST_BYTES, read_file, &e, err);
        if (rc == -ENOENT || rc == -ENOTDIR)
            spw_fail(err, rc, "%s: found no such file, expected file %" PRIu64 " of %" PRIu64, its,
                     i + 1, split->count);
        SPW_TRY(rc);
    }
    SPW_TRY(spw_tensors_merge(t, path, err));
    size_t n = spw_tensors_count(t);
    if (split->n_tensors && split->n_tensors != n)
        return spw_fail(err, -EINVAL,
                        "%s: split.tensors.count: found %" PRIu64
                        ", but its files have %zu tensors",
                        path, split->n_tensors, n);
    return 0;
}

static bool own_name(const void *architecture, const char *name, char out[SPW_MOST_OWN_NAME])
{
    return spw_gguf_name(architecture, name, out);
}

int spw_gguf_open_tensors(struct spw_tensors **out, const char *path, struct spw_error *err)
{
    struct spw_gguf_file f;
    struct split split = {0};
    const struct spw_gguf_architecture *architecture = NULL;
    *out = NULL;
    SPW_TRY(spw_gguf_open(&f, path, err));
    int rc = read_split(&f.gguf, path, &split, err);
    if (!rc)
        rc = check_first(path, &split, err);
    if (!rc)
        rc = spw_gguf_read_architecture(&f.gguf, path, &architecture, err);
    rc = spw_gguf_close(&f, path, rc, err);
    if (!rc && !(*out = spw_tensors_new(split.count)))
        rc = spw_fail(err, -ENOMEM, "%s: out of memory", path);
    if (!rc)
        spw_tensors_set_names(*out, own_name, architecture);
    if (!rc)
        rc = add_files(*out, path, &split, architecture, err);
    if (rc) {
        spw_tensors_close(*out);
        *out = NULL;
        spw_json_tidy(err);
    }
    return rc;
}
