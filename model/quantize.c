/* A model folder as a quantized GGUF file: see quantize.h.
 *
 * First all keys and the table of tensors, whose sizes follow from shapes and types; then the data
 * of one tensor after the other, in blocks of rows. The file has conventions of its own: names, the
 * order of rows of q and k in the architecture llama, and norms of Gemma with 1 added. */
#include "model/quantize.h"

#include "model/config/config_gguf_write.h"
#include "model/quantize_order.h"
#include "model/source/gguf_model.h"
#include "model/source/source.h"
#include "model/text/chat_template_parts.h"
#include "model/text/tokenizer/tokenizer_gguf.h"
#include "model/weights/tensor_names.h"
#include "model/weights/weights.h"
#include "quant/pack.h"

#include <assert.h>
#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { BLOCK_NUMBERS = 1 << 20 }; /* that are read and packed together, at least one row */

/* A tensor of the file. */
struct entry {
    /* NULL: the factors of rope, or `fill` everywhere if that is not 0; of experts, that of the
     * first */
    const struct spw_tensor *from;
    float fill;
    char name[SPW_GGUF_MOST_NAME + 1];
    long layer; /* -1: of none */
    enum spw_dtype from_type, type;
    const char *why;
    uint32_t n_dims;
    uint64_t shape[3];
    uint64_t rows, cols;
    struct spw_gguf_order order;
    bool negates_exp;
    /* The matrix of a role of each expert, rows of one after those of the other. SPW_NO_BLOCK: no
     * experts. */
    uint32_t first_block, role; /* of more than one role if the rows are more than its own */
    uint64_t step, first;       /* every step-th number of `from`, beginning with this one */
    bool plus_one;
};

struct job {
    const struct spw_quantize_options *o;
    struct spw_source source;
    struct spw_error *err;
    struct spw_model_config config;
    const struct spw_gguf_architecture *architecture;
    struct spw_tensors *tensors;
    struct spw_weights *weights;
    struct spw_gguf_writer writer;
    struct spw_gguf_notes notes;
    struct entry *entries; /* owned */
    size_t n_entries;
    float *numbers, *stored; /* owned, of a block of rows */
    uint8_t *packed;         /* owned, the same */
    uint64_t done, total;    /* numbers */
};

static int out_of_memory(const struct job *j)
{
    return spw_fail(j->err, -ENOMEM, "%s: out of memory", j->source.path);
}

/* ---- which tensors, and their types ---- */

/* Replaces a part of the name of a tensor. There is room for it. */
static void replace(char *name, const char *part, const char *by)
{
    char *at = strstr(name, part);
    if (!at)
        return;
    memmove(at + strlen(by), at + strlen(part), strlen(at + strlen(part)) + 1);
    memcpy(at, by, strlen(by));
}

/* Whether the name is that of a matrix of a dense mlp. */
static bool is_of_mlp(const char *name)
{
    return strstr(name, ".mlp.gate_proj.") || strstr(name, ".mlp.up_proj.") ||
           strstr(name, ".mlp.down_proj.");
}

/* The same in a model with two stacks, whose names in the file are those of the folder, renamed.
 * Other copies of the embedding have none. */
static bool find_stack_names(const struct job *j, const char *name,
                             char usual[SPW_MOST_TENSOR_NAME], char gguf[SPW_GGUF_MOST_NAME + 1])
{
    const char *prefix = spw_tensor_prefix(j->tensors);
    if (!spw_tensor_stack_name(j->tensors, prefix, name, &j->config, usual))
        return false;
    const bool embeds = !strcmp(usual, "model.embed_tokens.weight");
    return spw_gguf_name(j->architecture, embeds ? usual : name + strlen(prefix), gguf);
}

/* The usual name of a tensor of the decoder (tensor_names.h), and its name in the file; of a tensor
 * with gate and up that of gate. The weights were checked, so each name is either one of the
 * decoder or of another part. */
static bool find_names(const struct job *j, const char *name, char usual[SPW_MOST_TENSOR_NAME],
                       char gguf[SPW_GGUF_MOST_NAME + 1])
{
    const struct spw_model_config *c = &j->config;
    char its[2 * SPW_MOST_TENSOR_NAME];
    unsigned layer = 0;
    if (c->n_source_layers)
        return find_stack_names(j, name, usual, gguf);
    if (!(c->mtp && spw_tensor_mtp_name(name, c->n_layers - 1, usual)) &&
        !spw_tensor_usual_name(spw_tensor_prefix(j->tensors), name, usual))
        return false;
    snprintf(its, sizeof its, "%s", usual);
    if (!j->architecture->joined)
        replace(its, ".mlp.gate_up_proj.", ".mlp.gate_proj.");
    replace(its, ".A_log", ".A");
    const bool of_layer = sscanf(usual, "model.layers.%5u.", &layer) == 1;
    if (of_layer && layer >= c->n_layers) /* it predicts further tokens, and is not used */
        return false;
    if (of_layer && c->has_experts[layer] && !c->experts.beside && is_of_mlp(its))
        replace(its, ".mlp.", ".mlp.shared_expert.");
    return spw_gguf_name(j->architecture, its, gguf);
}

static bool is_taps(const struct spw_tensor *t)
{
    return t->n_dims == 3 && t->shape[1] == 1 && strstr(t->name, "conv");
}

/* Why a tensor gets F32; NULL: it does not. */
static const char *small_reason(const struct entry *e)
{
    const size_t n = strlen(e->name);
    return e->n_dims < 2                        ? "a vector"
           : strstr(e->name, "_norm.")          ? "of norms"
           : strstr(e->name, ".ffn_gate_inp.")  ? "a router"
           : strstr(e->name, "attn_rel_b.")     ? "of distances"
           : strstr(e->name, "conv1d.")         ? "of a convolution"
           : strstr(e->name, "shortconv.conv.") ? "of a convolution"
           : !strcmp(e->name + n - 5, ".bias")  ? "biases"
                                                : NULL;
}

static void choose_type(const struct job *j, struct entry *e)
{
    e->type = j->o->type;
    e->why = small_reason(e);
    if (e->why) {
        e->type = SPW_DTYPE_F32;
    } else if (e->cols % spw_type_of(j->o->type).elements) {
        e->type = e->from->dtype;
        e->why = "its rows are no whole blocks; the type of the folder";
    }
}

static int check_dtype(const struct job *j, const struct spw_tensor *t)
{
    if (t->dtype == SPW_DTYPE_F32 || t->dtype == SPW_DTYPE_F16 || t->dtype == SPW_DTYPE_BF16)
        return 0;
    return spw_fail(j->err, -ENOTSUP, "%s: tensor %s: dtype %s, expected F32, F16 or BF16", t->file,
                    t->name, t->dtype_name);
}

static void keep_entry(struct job *j, struct entry *e)
{
    if (!strncmp(e->name, "blk.", 4))
        e->layer = strtol(e->name + 4, NULL, 10);
    j->total += e->rows * e->cols;
    j->entries[j->n_entries++] = *e;
}

static struct entry plain_entry(const struct spw_tensor *t)
{
    const uint64_t cols = t->n_dims > 1 ? t->shape[t->n_dims - 1] : 1;
    return (struct entry){.from = t,
                          .from_type = t->dtype,
                          .layer = -1,
                          .n_dims = t->n_dims > 1 ? 2 : t->n_dims,
                          .shape = {t->shape[0], t->n_dims > 1 ? cols : 0},
                          .rows = t->shape[0],
                          .cols = cols,
                          .first_block = SPW_NO_BLOCK,
                          .step = 1};
}

static int add_entry(struct job *j, const struct spw_tensor *t)
{
    const struct spw_model_config *c = &j->config;
    char name[SPW_MOST_TENSOR_NAME];
    if (j->config.qk_norm_by_head && strstr(t->name, ".norms."))
        return spw_fail(j->err, -ENOTSUP,
                        "%s: tensor %s: found a tensor for the norm of each head, expected one for "
                        "all heads, as in files that quantize can write",
                        t->file, t->name);
    if (t->n_dims > 2 && !is_taps(t)) /* stacks of experts have their own rows */
        return 0;
    struct entry its = plain_entry(t), *e = &its;
    if (!find_names(j, t->name, name, e->name)) {
        /* Experts have rows of their own; factors of FP8 are multiplied into their matrix. Every
         * other tensor that a model reads has a name. */
        assert(!j->weights->is_read[t - spw_tensors_at(j->tensors, 0)] ||
               strstr(t->name, ".experts.") || strstr(t->name, "_scale_inv"));
        return 0;
    }
    if (strstr(e->name, ".nextn.") && !j->weights->is_read[t - spw_tensors_at(j->tensors, 0)])
        return 0; /* a copy of the embedding or of the head */
    SPW_TRY(check_dtype(j, t));
    if (t == j->weights->embedding.tensor) /* old folders have it under the head's name only */
        snprintf(e->name, sizeof e->name, "token_embd.weight");
    if (strstr(name, "embed_tokens_per_layer.")) /* its other rows are of no token */
        e->rows = e->shape[0] = c->vocab;
    if (t->n_dims == 2 && t->shape[0] == 1 &&
        (strstr(e->name, ".ffn_gate_inp_shexp.") || strstr(e->name, ".exp_probs_b."))) {
        e->n_dims = 1; /* one row is a vector there */
        e->shape[0] = t->shape[1];
    }
    const bool interleave = j->architecture->interleaved_qk && !c->interleaved_qk;
    if (interleave && (strstr(name, ".q_proj.") || strstr(name, ".k_proj.")))
        e->order.head_dim = c->kv[c->full_kind].head_dim;
    if (c->mixer.kind == SPW_MIXER_DELTA)
        spw_gguf_order_delta(&e->order, &c->mixer, name, j->architecture->tiled);
    e->negates_exp = strstr(name, ".A_log");
    e->plus_one = c->norm_plus_one && strstr(name, "norm.weight") &&
                  !strstr(name, "linear_attn.norm.") &&
                  !(c->plain_last && !strcmp(name, "model.norm.weight"));
    const bool alternates = strstr(name, ".gate_up_proj_bias");
    const bool halves = !j->architecture->joined && strstr(name, ".mlp.gate_up_proj.weight");
    if (alternates) {
        e->step = 2;
        e->cols = e->shape[1] = t->shape[1] / 2;
    } else if (halves) {
        e->rows = e->shape[0] = t->shape[0] / 2;
    } else if (e->order.ungrouped) {
        e->rows = e->shape[0] = c->mixer.conv_channels;
    }
    choose_type(j, e);
    keep_entry(j, e);
    if (e->order.ungrouped) {
        e->order.ungrouped_first = e->rows;
        e->rows = e->shape[0] = t->shape[0] - e->rows;
        replace(e->name, "attn_qkv", "attn_gate");
        keep_entry(j, e);
    }
    if (!alternates && !halves)
        return 0;
    e->first = alternates ? 1 : e->rows * e->cols;
    replace(e->name, "ffn_gate", "ffn_up");
    keep_entry(j, e);
    return 0;
}

/* The experts of a layer: a stack for each role, or one for gate and up. */
static int add_experts(struct job *j, uint32_t layer)
{
    static const char *const roles[] = {"gate", "up", "down"}; /* from SPW_MATRIX_GATE on */
    const struct spw_weights *w = j->weights;
    const uint32_t b = w->layer_experts[layer], n = j->config.experts.n;
    for (uint32_t i = 0; b != SPW_NO_BLOCK && i < w->blocks[b].n; i++) {
        const struct spw_matrix *m = &w->matrices[w->blocks[b].first + i];
        const bool joined = j->architecture->joined_experts && i == 0;
        const uint64_t rows = joined ? 2 * m->n : m->n; /* of an expert */
        struct entry e = {.from = m->tensor,
                          .from_type = m->form == SPW_FORM_PARTS ? m->type : m->tensor->dtype,
                          .n_dims = 3,
                          .shape = {n, rows, m->k},
                          .rows = n * rows,
                          .cols = m->k,
                          .first_block = b,
                          .role = i,
                          .step = 1};
        snprintf(e.name, sizeof e.name, "blk.%u.ffn_%s_exps.weight", layer,
                 joined ? "gate_up" : roles[m->role - SPW_MATRIX_GATE]);
        for (uint32_t k = 0; k < n && m->form != SPW_FORM_PARTS; k++)
            SPW_TRY(check_dtype(j, w->matrices[w->blocks[b + k].first + i].tensor));
        choose_type(j, &e);
        if (m->form == SPW_FORM_PARTS) {
            e.type = SPW_DTYPE_MXFP4;
            e.why = "the blocks of the folder";
        }
        keep_entry(j, &e);
        i += joined;
    }
    return 0;
}

static int compare_entries(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->layer != y->layer ? (x->layer > y->layer) - (x->layer < y->layer)
                                : strcmp(x->name, y->name);
}

/* A vector that the folder does not have. */
static struct entry *add_made(struct job *j, long layer, uint64_t n, const char *why)
{
    struct entry *e = &j->entries[j->n_entries++];
    *e = (struct entry){.from_type = SPW_DTYPE_F32,
                        .layer = layer,
                        .type = SPW_DTYPE_F32,
                        .why = why,
                        .n_dims = 1,
                        .shape = {n},
                        .rows = n,
                        .cols = 1,
                        .first_block = SPW_NO_BLOCK,
                        .step = 1};
    return e;
}

/* Norms of q and k that have no weights in the folder. */
static void add_qk_norms(struct job *j, uint32_t layer)
{
    const struct spw_model_config *c = &j->config;
    const float fill[] = {c->q_norm_scale, 1};
    for (int i = 0; i < 2; i++) {
        struct entry *e =
            add_made(j, layer, spw_config_kv(c, layer)->head_dim, "made from config.json");
        snprintf(e->name, sizeof e->name, "blk.%u.attn_%c_norm.weight", layer, "qk"[i]);
        e->fill = fill[i];
    }
}

static int list_entries(struct job *j)
{
    const size_t n = spw_tensors_count(j->tensors);
    const uint32_t n_pairs = j->config.rope[j->config.full_kind].rotary_dim / 2;
    const uint32_t n_layers = j->config.n_layers, more = SPW_EXPERT_MATRICES + 4; /* of a layer */
    j->entries = spw_alloc((n + 2 + more * n_layers) * sizeof *j->entries);
    if (!j->entries)
        return out_of_memory(j);
    for (size_t i = 0; i < n; i++)
        SPW_TRY(add_entry(j, spw_tensors_at(j->tensors, i)));
    for (uint32_t i = 0; i < n_layers; i++)
        SPW_TRY(add_experts(j, i));
    for (uint32_t i = 0; j->config.q_norm_scale > 0 && i < n_layers; i++)
        add_qk_norms(j, i);
    for (uint32_t i = 0; spw_config_rope_tensor(&j->config, i); i++) {
        struct entry *e = add_made(j, -1, n_pairs, "made from the rope of config.json");
        snprintf(e->name, sizeof e->name, "%s", spw_config_rope_tensor(&j->config, i));
    }
    qsort(j->entries, j->n_entries, sizeof *j->entries, compare_entries);
    return 0;
}

/* ---- the header ---- */

static void add_general(struct job *j)
{
    char path[4096];
    snprintf(path, sizeof path, "%s", j->source.path);
    const char *name = basename(path);
    if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
        spw_gguf_add_string(&j->writer, "general.name", name);
    /* Numbers of the format: which type most matrices have. */
    spw_gguf_add_u32(&j->writer, "general.file_type", j->o->type == SPW_DTYPE_Q8_0 ? 7 : 2);
    spw_gguf_add_u32(&j->writer, "general.quantization_version", 2);
}

/* A model without a tokenizer has no tokenizer in the file, either. */
static int add_tokenizer(struct job *j)
{
    struct spw_tokenizer *t;
    char name[1024];
    int rc = j->source.ops->tokenizer(&j->source, &t, j->err);
    if (rc == -ENOENT) {
        spw_error_clear(j->err);
        spw_gguf_note(&j->notes, "the folder has no tokenizer, so the file has none");
    } else if (rc) {
        return rc;
    }
    snprintf(name, sizeof name, "%.1000s/tokenizer.json", j->source.path);
    rc = spw_tokenizer_write_gguf(&j->writer, t, &j->config, name, &j->notes, j->err);
    spw_tokenizer_close(t);
    return rc;
}

static int add_chat_template(struct job *j, const char *name, const char *key)
{
    char *text;
    SPW_TRY(spw_chat_template_text(j->source.path, name, &text, j->err));
    if (text)
        spw_gguf_add_string(&j->writer, key, text);
    spw_free(text);
    return 0;
}

/* A file of T5 says by its head whether the rows in front of the head are scaled. */
static int check_scale(const struct job *j)
{
    const bool has_head = spw_tensors_find(j->tensors, "lm_head.weight");
    if (!j->config.n_source_layers || has_head == (j->config.logit_divisor == 1))
        return 0;
    return spw_fail(j->err, -ENOTSUP,
                    "%s: config.json: found rows that are %s before the head, and %s "
                    "lm_head.weight, which GGUF files of T5 do not store; expected rows that are "
                    "scaled if and only if the folder has no lm_head.weight",
                    j->source.path, has_head ? "scaled" : "not scaled", has_head ? "a" : "no");
}

static int add_keys(struct job *j)
{
    if (j->config.wrapper)
        spw_gguf_note(&j->notes, "the folder has a text model and parts for images: the file has "
                                 "the text model only");
    SPW_TRY(spw_config_write_gguf(&j->writer, &j->config, j->architecture, j->source.path,
                                  &j->notes, j->err));
    SPW_TRY(check_scale(j));
    add_general(j);
    SPW_TRY(add_tokenizer(j));
    SPW_TRY(add_chat_template(j, "default", "tokenizer.chat_template"));
    return add_chat_template(j, "tool_use", "tokenizer.chat_template.tool_use");
}

/* ---- the data of a tensor ---- */

/* Of the stream, after a call that failed. */
static int write_error(void)
{
    return errno ? -errno : -EIO;
}

/* Rows of the experts' matrices, by way of `packed`. The pages of an expert are released after its
 * last row. */
static void read_expert_rows(const struct job *j, const struct entry *e, uint64_t from, uint64_t n)
{
    const struct spw_weights *w = j->weights;
    for (uint64_t r = 0; r < n; r++) {
        const uint64_t rows = e->shape[1], row = (from + r) % rows;
        const uint32_t b = e->first_block + (uint32_t)((from + r) / rows);
        const struct spw_matrix *m = &w->matrices[w->blocks[b].first + e->role];
        uint8_t *packed = j->packed + r * spw_row_bytes(m->type, e->cols);
        spw_weights_pack_row(w, m + row / m->n, row % m->n, packed);
        spw_type_read(m->type, packed, 0, e->cols, j->numbers + r * e->cols);
        if (row + 1 == rows)
            spw_weights_release(w, b);
    }
}

static void read_rows(const struct job *j, const struct entry *e, uint64_t from, uint64_t n)
{
    const uint64_t cols = e->cols;
    for (uint64_t i = 0; e->fill > 0 && i < n; i++)
        j->numbers[i] = e->fill;
    if (e->fill > 0)
        return;
    if (!e->from)
        spw_config_rope_factors(&j->config, e->name, j->numbers);
    else if (e->first_block != SPW_NO_BLOCK)
        read_expert_rows(j, e, from, n);
    else if (e->step > 1)
        for (uint64_t i = 0; i < n * cols; i++)
            spw_type_read(e->from->dtype, e->from->data, (from * cols + i) * e->step + e->first, 1,
                          j->numbers + i);
    else if (e->order.columns)
        for (uint64_t i = 0; i < n * cols; i++)
            spw_type_read(e->from->dtype, e->from->data,
                          (from + i / cols) * cols +
                              spw_gguf_order_column(&e->order, &j->config.mixer, i % cols),
                          1, j->numbers + i);
    else if (!spw_gguf_order_has_rows(&e->order))
        spw_type_read(e->from->dtype, e->from->data, e->first + from * cols, n * cols, j->numbers);
    else
        for (uint64_t r = 0; r < n; r++)
            spw_type_read(e->from->dtype, e->from->data,
                          spw_gguf_order_row(&e->order, &j->config.mixer, from + r) * cols, cols,
                          j->numbers + r * cols);
    for (uint64_t i = 0; e->plus_one && i < n * cols; i++)
        j->numbers[i] = j->numbers[i] + 1.0f;
    for (uint64_t i = 0; e->negates_exp && i < n * cols; i++)
        j->numbers[i] = (float)-exp((double)j->numbers[i]);
}

struct errors {
    double squares, of_numbers, largest;
};

static int refuse_number(const struct job *j, const struct entry *e, double x)
{
    return spw_fail(j->err, -EINVAL,
                    "%s: tensor %s: found the number %g, expected numbers that %s can hold",
                    e->from ? e->from->file : j->source.path, e->from ? e->from->name : e->name, x,
                    spw_dtype_name(e->type));
}

/* Adds the errors of n numbers. An infinite number has harmed its whole block. */
static int measure(const struct job *j, const struct entry *e, uint64_t n, struct errors *sum)
{
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(j->numbers[i]))
            return refuse_number(j, e, (double)j->numbers[i]);
    for (uint64_t i = 0; i < n; i++) {
        const double x = (double)j->numbers[i], error = (double)j->stored[i] - x;
        if (!isfinite(error))
            return refuse_number(j, e, x);
        sum->squares += error * error;
        sum->of_numbers += x * x;
        sum->largest = fmax(sum->largest, fabs(error));
    }
    return 0;
}

static int write_rows(struct job *j, const struct entry *e, uint64_t n, struct errors *sum)
{
    const uint64_t bytes = spw_row_bytes(e->type, n * e->cols);
    if (e->type != SPW_DTYPE_MXFP4) /* which read_rows has packed */
        spw_type_write(e->type, j->numbers, n * e->cols, j->packed);
    spw_type_read(e->type, j->packed, 0, n * e->cols, j->stored);
    SPW_TRY(measure(j, e, n * e->cols, sum));
    errno = 0;
    if (fwrite(j->packed, 1, bytes, j->o->to) != bytes)
        return write_error();
    j->done += e->from ? n * e->cols : 0;
    if (j->o->on_progress && !j->o->on_progress(j->o->context, j->done, j->total))
        return -ECANCELED;
    return 0;
}

static int take_buffers(struct job *j)
{
    uint64_t most = BLOCK_NUMBERS;
    for (size_t i = 0; i < j->n_entries; i++)
        most = spw_max_u64(most, j->entries[i].cols);
    most = spw_max_u64(most, j->config.rope[j->config.full_kind].rotary_dim);
    j->numbers = spw_alloc(most * sizeof *j->numbers);
    j->stored = spw_alloc(most * sizeof *j->stored);
    j->packed = spw_alloc(most * sizeof(float));
    return j->numbers && j->stored && j->packed ? 0 : out_of_memory(j);
}

static int write_entry(struct job *j, const struct entry *e)
{
    const uint64_t step = spw_max_u64(BLOCK_NUMBERS / e->cols, 1);
    struct errors sum = {0};
    for (uint64_t r = 0; r < e->rows; r += step) {
        const uint64_t n = spw_min_u64(step, e->rows - r);
        read_rows(j, e, r, n);
        SPW_TRY(write_rows(j, e, n, &sum));
    }
    struct spw_quantized q = {.name = e->name,
                              .from = e->from_type,
                              .to = e->type,
                              .why = e->why,
                              .n = e->rows * e->cols,
                              .largest_error = sum.largest};
    q.bytes = spw_row_bytes(e->type, q.n);
    q.relative_error = sum.of_numbers > 0 ? sqrt(sum.squares / sum.of_numbers) : 0;
    if (e->from)
        spw_tensors_release(e->from->data, e->from->bytes);
    SPW_TRY(spw_gguf_write_padding(j->o->to, q.bytes));
    if (j->o->on_tensor)
        j->o->on_tensor(j->o->context, &q);
    return 0;
}

static int write_file(struct job *j)
{
    for (size_t i = 0; i < j->n_entries; i++) {
        const struct entry *e = &j->entries[i];
        spw_gguf_add_tensor(&j->writer, e->name, e->type, e->n_dims, e->shape);
    }
    int rc = spw_gguf_write_header(&j->writer, j->o->to);
    if (rc == -ENOMEM)
        return out_of_memory(j);
    for (uint32_t i = 0; i < j->notes.n && j->o->on_note; i++)
        j->o->on_note(j->o->context, j->notes.at[i]);
    for (size_t i = 0; i < j->n_entries && !rc; i++)
        rc = write_entry(j, &j->entries[i]);
    errno = 0;
    if (!rc && fflush(j->o->to) != 0)
        rc = write_error();
    return rc ? rc : spw_tensors_check(j->tensors, j->err);
}

/* ---- all of it ---- */

/* Checks that the folder is a model that this program computes. */
static int open_model(struct job *j)
{
    SPW_TRY(j->source.ops->config(&j->source, &j->config, j->err));
    j->architecture = spw_gguf_architecture_of(&j->config);
    if (!j->architecture)
        return spw_fail(j->err, -ENOTSUP,
                        "%s: config.json: found the model type %s, expected one that GGUF has an "
                        "architecture for (docs/models.md lists them)",
                        j->source.path, j->config.model_type);
    SPW_TRY(j->source.ops->tensors(&j->source, &j->tensors, j->err));
    if (j->config.may_add_mtp && spw_tensors_have_mtp(j->tensors, j->config.n_layers))
        SPW_TRY(spw_config_add_mtp(&j->config, j->err));
    return spw_weights_open(&j->weights, &j->config, j->tensors, SPW_DTYPE_F32, j->err);
}

static int check_arguments(const char *folder, const struct spw_quantize_options *o,
                           struct spw_error *err)
{
    struct stat info;
    if (o->type != SPW_DTYPE_Q8_0 && o->type != SPW_DTYPE_Q4_0)
        return spw_fail(err, -EINVAL, "type: found %s, expected q8_0 or q4_0",
                        spw_dtype_name(o->type));
    if (!stat(folder, &info) && !S_ISDIR(info.st_mode))
        return spw_fail(err, -ENOTDIR,
                        "%s: found a file, expected a Hugging Face model folder, whose "
                        "weights are F32, F16 or BF16",
                        folder);
    return 0;
}

static int run(struct job *j)
{
    SPW_TRY(open_model(j));
    SPW_TRY(list_entries(j));
    SPW_TRY(take_buffers(j));
    SPW_TRY(add_keys(j));
    return write_file(j);
}

int spw_quantize(const char *folder, const struct spw_quantize_options *o, struct spw_error *err)
{
    struct job j = {.o = o, .err = err, .source = {.ops = &spw_source_folder}};
    spw_error_clear(err);
    SPW_TRY(check_arguments(folder, o, err));
    j.source.path = spw_strdup(folder);
    int rc = j.source.path ? run(&j) : spw_fail(err, -ENOMEM, "%s: out of memory", folder);
    spw_gguf_writer_free(&j.writer);
    spw_free(j.entries);
    spw_free(j.numbers);
    spw_free(j.stored);
    spw_free(j.packed);
    spw_weights_close(j.weights);
    spw_tensors_close(j.tensors);
    spw_config_free(&j.config);
    spw_free(j.source.path);
    return rc;
}
