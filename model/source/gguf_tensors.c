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

enum { GGUF, FOLDER }; /* columns of the tables */

/* Properties of an architecture that change the names of its norms, or of its mlp. */
enum {
    POST = 1,
    SANDWICH = 2,
    LATE = 4,
    GLM = 8,
    JOINED = 16,
    DELTA = 32,
    CONV = 64,
    SCAN = 128,
    PAIRS = 256
};

/* Tensors of layers, without ".weight" or ".bias": in a GGUF file, in a folder. `only`: a row of
 * architectures with any of these properties; 0: of all, `but` not of those. */
static const struct {
    const char *name[2];
    unsigned only, but;
} layer_names[] = {
    {.name = {"attn_norm", "input_layernorm"}},
    {.name = {"attn_q", "self_attn.q_proj"}},
    {.name = {"attn_k", "self_attn.k_proj"}},
    {.name = {"attn_qkv", "linear_attn.in_proj"}, .only = DELTA},
    {.name = {"attn_qkv", "self_attn.qkv_proj"}},
    {.name = {"attn_v", "self_attn.v_proj"}},
    {.name = {"attn_output", "self_attn.o_proj"}},
    {.name = {"attn_out", "self_attn.o_proj"}}, /* as Ollama's gptoss has it */
    {.name = {"attn_q_norm", "self_attn.q_norm"}},
    {.name = {"attn_k_norm", "self_attn.k_norm"}},
    {.name = {"attn_gate", "self_attn.gate_proj"}, .only = SANDWICH},
    {.name = {"post_attention_norm", "post_self_attn_layernorm"}, .only = GLM},
    {.name = {"post_attention_norm", "post_attention_layernorm"}, .only = POST | SANDWICH | LATE},
    {.name = {"ffn_norm", "pre_feedforward_layernorm"}, .only = SANDWICH},
    {.name = {"ffn_norm", "post_attention_layernorm"}, .but = SANDWICH | LATE},
    {.name = {"post_ffw_norm", "post_mlp_layernorm"}, .only = GLM},
    {.name = {"post_ffw_norm", "post_feedforward_layernorm"}, .but = GLM},
    {.name = {"ffn_gate", "mlp.gate_proj"}},
    {.name = {"ffn_up", "mlp.gate_up_proj"}, .only = JOINED},
    {.name = {"ffn_up", "mlp.up_proj"}, .but = JOINED},
    {.name = {"ffn_down", "mlp.down_proj"}},
    {.name = {"ffn_gate_inp", "mlp.gate"}}, /* the router; stacked experts; the shared expert */
    {.name = {"ffn_gate_exps", "mlp.experts.gate_proj"}},
    {.name = {"ffn_up_exps", "mlp.experts.up_proj"}},
    {.name = {"ffn_gate_up_exps", "mlp.experts.gate_up_proj"}},
    {.name = {"ffn_down_exps", "mlp.experts.down_proj"}},
    {.name = {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"}},
    {.name = {"ffn_up_shexp", "mlp.shared_expert.up_proj"}},
    {.name = {"ffn_down_shexp", "mlp.shared_expert.down_proj"}},
    {.name = {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"}},
    {.name = {"ffn_latent_down", "mlp.fc1_latent_proj"}}, /* around experts */
    {.name = {"ffn_latent_up", "mlp.fc2_latent_proj"}},
    {.name = {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"}}, /* experts beside an mlp */
    {.name = {"post_ffw_norm_1", "post_feedforward_layernorm_1"}},
    {.name = {"post_ffw_norm_2", "post_feedforward_layernorm_2"}},
    {.name = {"inp_gate", "per_layer_input_gate"}}, /* numbers that each layer gets of a row */
    {.name = {"proj", "per_layer_projection"}},
    {.name = {"post_norm", "post_per_layer_input_norm"}},
    {.name = {"attn_gate", "linear_attn.gate_proj"}, .only = DELTA}, /* layers with a state */
    {.name = {"shortconv.in_proj", "linear_attn.in_proj"}, .only = CONV},
    {.name = {"shortconv.conv", "linear_attn.conv1d"}, .only = CONV},
    {.name = {"shortconv.out_proj", "linear_attn.out_proj"}, .only = CONV},
    {.name = {"ssm_in", "linear_attn.in_proj"}}, /* with the gate in old files of qwen3next */
    {.name = {"ssm_ba", "linear_attn.beta_proj"}, .only = PAIRS},
    {.name = {"ssm_beta", "linear_attn.beta_proj"}},
    {.name = {"ssm_alpha", "linear_attn.rate_proj"}},
    {.name = {"ssm_conv1d", "linear_attn.conv1d"}},
    {.name = {"ssm_x", "linear_attn.x_proj"}, .only = SCAN},
    {.name = {"ssm_dt", "linear_attn.dt_proj"}, .only = SCAN},
    {.name = {"ssm_norm", "linear_attn.norm"}},
    {.name = {"ssm_out", "linear_attn.out_proj"}},
    {.name = {"nextn.eh_proj", "eh_proj"}}, /* of the MTP layer */
    {.name = {"nextn.enorm", "enorm"}},
    {.name = {"nextn.hnorm", "hnorm"}},
    {.name = {"nextn.shared_head_norm", "shared_head.norm"}},
    {.name = {"nextn.embed_tokens", "embed_tokens"}},
    {.name = {"nextn.shared_head_head", "shared_head.head"}},
};

/* The last norm of LFM2. */
#define LFM2_NORM "token_embd_norm.weight"

/* Tensors of no layer. */
static const char *const model_names[][2] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {LFM2_NORM, "model.norm.weight"},
    {"output_norm.bias", "model.norm.bias"},
    {"enc.output_norm.weight", "encoder.final_layer_norm.weight"},
    {"dec.output_norm.weight", "decoder.final_layer_norm.weight"},
    {"output.weight", "lm_head.weight"},
    {"output.bias", "lm_head.bias"},
    {"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
    {"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
    {"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"},
    {"rope_freqs.weight", SPW_ROPE_FACTORS_NAME},
    {"rope_factors_short.weight", SPW_ROPE_SHORT_NAME},
    {"rope_factors_long.weight", SPW_ROPE_LONG_NAME},
};

/* Tensors of layers whose names have other ends. The first row that fits counts. */
static const char *const other_names[][2] = {
    {"attn_sinks.weight", "self_attn.sinks"},
    {"attn_sinks", "self_attn.sinks"}, /* as Ollama's gptoss has it */
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"ffn_gate_inp.per_expert_scale", "router.per_expert_scale"}, /* as Ollama's gemma4 has it */
    {"layer_output_scale.weight", "layer_scalar"},
    {"ffn_gate_exps.bias", "mlp.experts.gate_up_proj_bias"}, /* alternates with that of up */
    {"ffn_down_exps.bias", "mlp.experts.down_proj_bias"},
    {"ssm_a", "linear_attn.A"},
    {"ssm_d", "linear_attn.D"},
    {"ffn_norm", "post_attention_layernorm.weight"}, /* of Falcon-H1 */
    {"ssm_dt.bias", "linear_attn.dt_bias"},
};

/* The same of T5, whose files have "enc.blk.12." and "dec.blk.12." in front: the part in the
 * folder, and whether it is in the decoder. The first row that fits counts: without a gate, the
 * folder calls `wi` what weights.h calls the matrix of up. */
static const struct {
    const char *name[2];
    bool decoder;
} stack_names[] = {
    {{"attn_norm", "layer.0.layer_norm"}, false},
    {{"attn_q", "layer.0.SelfAttention.q"}, false},
    {{"attn_k", "layer.0.SelfAttention.k"}, false},
    {{"attn_v", "layer.0.SelfAttention.v"}, false},
    {{"attn_o", "layer.0.SelfAttention.o"}, false},
    {{"attn_rel_b", "layer.0.SelfAttention.relative_attention_bias"}, false},
    {{"ffn_norm", "layer.1.layer_norm"}, false},
    {{"ffn_gate", "layer.1.DenseReluDense.wi_0"}, false},
    {{"ffn_up", "layer.1.DenseReluDense.wi_1"}, false},
    {{"ffn_up", "layer.1.DenseReluDense.wi"}, false},
    {{"ffn_down", "layer.1.DenseReluDense.wo"}, false},
    {{"attn_norm", "layer.0.layer_norm"}, true},
    {{"attn_q", "layer.0.SelfAttention.q"}, true},
    {{"attn_k", "layer.0.SelfAttention.k"}, true},
    {{"attn_v", "layer.0.SelfAttention.v"}, true},
    {{"attn_o", "layer.0.SelfAttention.o"}, true},
    {{"attn_rel_b", "layer.0.SelfAttention.relative_attention_bias"}, true},
    {{"cross_attn_norm", "layer.1.layer_norm"}, true},
    {{"cross_attn_q", "layer.1.EncDecAttention.q"}, true},
    {{"cross_attn_k", "layer.1.EncDecAttention.k"}, true},
    {{"cross_attn_v", "layer.1.EncDecAttention.v"}, true},
    {{"cross_attn_o", "layer.1.EncDecAttention.o"}, true},
    {{"cross_attn_rel_b", "layer.1.EncDecAttention.relative_attention_bias"}, true},
    {{"ffn_norm", "layer.2.layer_norm"}, true},
    {{"ffn_gate", "layer.2.DenseReluDense.wi_0"}, true},
    {{"ffn_up", "layer.2.DenseReluDense.wi_1"}, true},
    {{"ffn_up", "layer.2.DenseReluDense.wi"}, true},
    {{"ffn_down", "layer.2.DenseReluDense.wo"}, true},
};

static unsigned properties(const struct spw_gguf_architecture *a)
{
    const struct spw_mixer_facts *facts = &spw_family_find(a->model_type)->mixer;
    const enum spw_mixer_kind mixer = facts->kind;
    return (a->post_attention_norm ? POST : 0u) | (a->sandwich ? SANDWICH : 0u) |
           (a->late_norms ? LATE : 0u) | (a->glm_norms ? GLM : 0u) | (a->joined ? JOINED : 0u) |
           (mixer == SPW_MIXER_DELTA ? DELTA : 0u) | (mixer == SPW_MIXER_CONV ? CONV : 0u) |
           (mixer == SPW_MIXER_SCAN ? SCAN : 0u) | (facts->grouped ? PAIRS : 0u);
}

/* What the part of a name behind its layer is called in the other kind of files. *end: what follows
 * there. NULL: there is no such tensor. */
static const char *other_name(const struct spw_gguf_architecture *a, const char *part, int from,
                              const char **end)
{
    const unsigned has = properties(a);
    *end = strrchr(part, '.');
    const bool usual = *end && (!strcmp(*end, ".weight") || !strcmp(*end, ".bias"));
    for (size_t i = 0; usual && i < sizeof layer_names / sizeof *layer_names; i++) {
        const char *its = layer_names[i].name[from];
        const unsigned only = layer_names[i].only, but = layer_names[i].but;
        if ((only ? (only & has) != 0 : !(but & has)) && strlen(its) == (size_t)(*end - part) &&
            !strncmp(part, its, strlen(its)))
            return layer_names[i].name[!from];
    }
    const bool unused = from == GGUF && usual && !strncmp(part, "nextn.", 6); /* a later layer's */
    *end = unused ? part : "";
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++)
        if (!strcmp(part, other_names[i][from]))
            return other_names[i][!from];
    return unused ? "" : NULL;
}

/* The same in an encoder or a decoder. */
static const char *other_stack_name(bool decoder, const char *part, int from, const char **end)
{
    *end = strrchr(part, '.');
    for (size_t i = 0; *end && i < sizeof stack_names / sizeof *stack_names; i++) {
        const char *its = stack_names[i].name[from];
        if (stack_names[i].decoder == decoder && strlen(its) == (size_t)(*end - part) &&
            !strncmp(part, its, strlen(its)))
            return stack_names[i].name[!from];
    }
    return NULL;
}

/* What stands before the number of a layer, of a stack if the model has two. */
enum { LAYERS, ENCODER, DECODER, N_STARTS };
static const char *const starts[N_STARTS][2] = {[LAYERS] = {"blk.", "model.layers."},
                                                [ENCODER] = {"enc.blk.", "encoder.block."},
                                                [DECODER] = {"dec.blk.", "decoder.block."}};

/* "blk.12.attn_q.weight" is "model.layers.12.self_attn.q_proj.weight". */
static bool rename_tensor(const struct spw_gguf_architecture *a, const char *name, int from,
                          char *out, size_t bytes)
{
    const bool conv = (properties(a) & CONV) != 0, stacks = spw_family_find(a->model_type)->encodes;
    if (from == FOLDER && conv && !strcmp(name, "model.norm.weight")) {
        snprintf(out, bytes, "%s", LFM2_NORM);
        return true;
    }
    for (size_t i = 0; i < sizeof model_names / sizeof *model_names; i++)
        if (!strcmp(name, model_names[i][from])) {
            snprintf(out, bytes, "%s", model_names[i][!from]);
            return true;
        }
    int its = stacks ? ENCODER : LAYERS;
    its += stacks && !strncmp(name, starts[DECODER][from], strlen(starts[DECODER][from]));
    const size_t start = strlen(starts[its][from]);
    if (strncmp(name, starts[its][from], start) != 0)
        return false;
    const char *layer = name + start, *end;
    const size_t n = strspn(layer, "0123456789");
    if (!n || n > 5 || (n > 1 && *layer == '0') || layer[n] != '.')
        return false;
    const char *to = stacks ? other_stack_name(its == DECODER, layer + n + 1, from, &end)
                            : other_name(a, layer + n + 1, from, &end);
    if (to)
        snprintf(out, bytes, "%s%.*s.%s%s", starts[its][!from], (int)n, layer, to, end);
    return to != NULL;
}

bool spw_gguf_is_other_part(const char *name)
{
    return !strncmp(name, "v.", 2) || !strncmp(name, "a.", 2) || !strncmp(name, "mm.", 3);
}

bool spw_gguf_hf_name(const struct spw_gguf_architecture *a, const char *name,
                      char out[SPW_GGUF_MOST_HF_NAME])
{
    if (!spw_gguf_is_other_part(name))
        return rename_tensor(a, name, GGUF, out, SPW_GGUF_MOST_HF_NAME);
    snprintf(out, SPW_GGUF_MOST_HF_NAME, "%s", name);
    return true;
}

bool spw_gguf_name(const struct spw_gguf_architecture *a, const char *hf_name,
                   char out[SPW_GGUF_MOST_NAME + 1])
{
    return rename_tensor(a, hf_name, FOLDER, out, SPW_GGUF_MOST_NAME + 1);
}

int spw_gguf_rename_all(struct spw_tensor_table *table, const struct spw_gguf_architecture *a,
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

/* A model that is being opened. */
struct model {
    const struct spw_gguf_architecture *architecture; /* of the first file, as `split` */
    struct split split;
    uint64_t number; /* of the file that is read */
};

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

static int read_file(struct spw_tensor_table *out, uint64_t *header_bytes, const uint8_t *base,
                     uint64_t bytes, const char *path, void *context, struct spw_error *err)
{
    struct model *m = context;
    struct spw_gguf g;
    struct split split = {0};
    SPW_TRY(spw_gguf_parse(&g, base, bytes, path, err));
    int rc = read_split(&g, path, &split, err);
    if (!rc && !m->number) {
        m->split = split;
        rc = check_first(path, &split, err);
        if (!rc)
            rc = spw_gguf_read_architecture(&g, path, &m->architecture, err);
    }
    if (!rc && (split.number != m->number || split.count != m->split.count))
        rc = spw_fail(err, -EINVAL,
                      "%s: found file %" PRIu64 " of %" PRIu64 ", expected file %" PRIu64
                      " of %" PRIu64,
                      path, split.number + 1, split.count, m->number + 1, m->split.count);
    if (!rc)
        rc = spw_gguf_rename_all(&g.tensors, m->architecture, path, err);
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

static bool own_name(const void *architecture, const char *name, char out[SPW_MOST_OWN_NAME])
{
    return spw_gguf_name(architecture, name, out);
}

static int add_files(struct spw_tensors *t, const char *path, struct spw_error *err)
{
    struct model m = {.split.count = 1};
    for (; m.number < m.split.count; m.number++) {
        char *its = path_of(path, &m.split, m.number);
        if (!its)
            return spw_fail(err, -ENOMEM, "%s: out of memory", path);
        int rc = spw_tensors_add(t, its, SPW_GGUF_LEAST_BYTES, read_file, &m, err);
        if (m.number && (rc == -ENOENT || rc == -ENOTDIR))
            spw_fail(err, rc, "%s: found no such file, expected file %" PRIu64 " of %" PRIu64, its,
                     m.number + 1, m.split.count);
        SPW_TRY(rc);
    }
    spw_tensors_set_names(t, own_name, m.architecture);
    SPW_TRY(spw_tensors_merge(t, path, err));
    size_t n = spw_tensors_count(t);
    if (m.split.n_tensors && m.split.n_tensors != n)
        return spw_fail(err, -EINVAL,
                        "%s: split.tensors.count: found %" PRIu64
                        ", but its files have %zu tensors",
                        path, m.split.n_tensors, n);
    return 0;
}

int spw_gguf_open_tensors(struct spw_tensors **out, const char *path, struct spw_error *err)
{
    *out = spw_tensors_new();
    int rc = *out ? add_files(*out, path, err) : spw_fail(err, -ENOMEM, "%s: out of memory", path);
    if (rc) {
        spw_tensors_close(*out);
        *out = NULL;
        spw_json_tidy(err);
    }
    return rc;
}
