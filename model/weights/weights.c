/* The table of matrices and its blocks: see weights.h. Layers come first: a layer is one block,
 * with its matrices in the order of their roles. Then come the rows of the head, divided into
 * blocks. Then come the experts of all layers, a block for each. */
#include "model/weights/weights_parts.h"

#include "base/grow.h"
#include "quant/types.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { PACKED_ALIGN = 64 };

static uint64_t packed_bytes(const struct spw_matrix *m)
{
    return m->n * spw_row_bytes(m->type, m->k);
}

/* ---- matrices ---- */

static const struct {
    const char *part, *name;
    bool joined; /* forms one product with the matrix before it */
} roles[SPW_LAYER_MATRICES] = {
    [SPW_MATRIX_Q] = {"self_attn.", "q_proj.weight", false},
    [SPW_MATRIX_K] = {"self_attn.", "k_proj.weight", true},
    [SPW_MATRIX_V] = {"self_attn.", "v_proj.weight", true},
    [SPW_MATRIX_O] = {"self_attn.", "o_proj.weight", false},
    [SPW_MATRIX_SOURCE_K] = {"source_attn.", "k_proj.weight", false},
    [SPW_MATRIX_SOURCE_V] = {"source_attn.", "v_proj.weight", true},
    [SPW_MATRIX_SOURCE_CONV1] = {"", "source_conv1.weight", false},
    [SPW_MATRIX_SOURCE_CONV2] = {"", "source_conv2.weight", false},
    [SPW_MATRIX_O_GATE] = {"self_attn.", "gate_proj.weight", false},
    [SPW_MATRIX_IN] = {"linear_attn.", "in_proj.weight", false},
    [SPW_MATRIX_IN_GATE] = {"linear_attn.", "gate_proj.weight", true},
    [SPW_MATRIX_IN_BETA] = {"linear_attn.", "beta_proj.weight", true},
    [SPW_MATRIX_IN_RATE] = {"linear_attn.", "rate_proj.weight", true},
    [SPW_MATRIX_LRU_GATE] = {"linear_attn.", "input_gate.weight", false},
    [SPW_MATRIX_LRU_RATE] = {"linear_attn.", "recurrent_gate.weight", false},
    [SPW_MATRIX_SCAN] = {"linear_attn.", "x_proj.weight", false},
    [SPW_MATRIX_SCAN_DT] = {"linear_attn.", "dt_proj.weight", false},
    [SPW_MATRIX_OUT] = {"linear_attn.", "out_proj.weight", false},
    [SPW_MATRIX_GATE] = {"mlp.", "gate_proj.weight", false},
    [SPW_MATRIX_UP] = {"mlp.", "up_proj.weight", true},
    [SPW_MATRIX_DOWN] = {"mlp.", "down_proj.weight", false},
    [SPW_MATRIX_LATENT_IN] = {"", "mlp.fc1_latent_proj.weight", false},
    [SPW_MATRIX_LATENT_OUT] = {"", "mlp.fc2_latent_proj.weight", false},
    [SPW_MATRIX_INPUT_GATE] = {"", "per_layer_input_gate.weight", false},
    [SPW_MATRIX_INPUT_OUT] = {"", "per_layer_projection.weight", false},
    [SPW_MATRIX_JOIN] = {"", "eh_proj.weight", false},
};

/* The type that products take. Quantized weights stay as they are stored. Computing in bf16 needs
 * plain weights in bf16. */
static enum spw_dtype product_type(const struct spw_tensor *t, enum spw_dtype compute)
{
    if (compute == SPW_DTYPE_BF16 && !spw_type_is_quantized(t->dtype))
        return SPW_DTYPE_BF16;
    return spw_type_of(t->dtype).multiplies ? t->dtype : SPW_DTYPE_F32;
}

/* In a layer with experts, the matrices of the mlp are those of the expert that every row has, or
 * of the mlp beside the experts. */
uint64_t spw_layer_mlp_width(const struct spw_model_config *c, uint32_t layer)
{
    if (c->has_experts[layer] && !c->experts.beside)
        return c->experts.shared_intermediate;
    return c->has_mlp[layer] ? spw_config_mlp_width(c, layer) : 0;
}

bool spw_has_shared_name(const struct spw_finder *f, const struct spw_model_config *c,
                         uint32_t layer)
{
    return c->has_experts[layer] && !c->experts.beside &&
           !spw_find_by_layer(f, layer, "mlp.down_proj.weight");
}

/* Some files have one tensor for q, k and v, and one for gate and up: the rows follow each other.
 * m->tensor stays NULL if there is no such tensor. */
static int find_in_joined(struct spw_matrix *m, const struct spw_finder *f,
                          const uint64_t shapes[SPW_LAYER_MATRICES][2])
{
    const bool qkv = m->role <= SPW_MATRIX_V,
               gate_up = m->role == SPW_MATRIX_GATE || m->role == SPW_MATRIX_UP;
    const char *name = qkv ? "self_attn.qkv_proj.weight" : "mlp.gate_up_proj.weight";
    if ((!qkv && !gate_up) || !spw_find_by_layer(f, m->layer, name))
        return 0;
    uint64_t rows = 0;
    for (int r = qkv ? SPW_MATRIX_Q : SPW_MATRIX_GATE; r <= (qkv ? SPW_MATRIX_V : SPW_MATRIX_UP);
         r++) {
        m->first_row += r < (int)m->role ? shapes[r][0] : 0;
        rows += shapes[r][0];
    }
    return spw_find_in_layer(f, m->layer, name, rows, m->k, &m->tensor);
}

/* The rows of all layers are in one tensor of the model. */
static int find_input(struct spw_matrix *m, const struct spw_finder *f,
                      const struct spw_model_config *c)
{
    m->first_row = m->layer * m->n;
    return spw_find_tensor(f, "model.per_layer_model_projection.weight", c->n_layers * m->n, m->k,
                           &m->tensor);
}

static int find_alone(struct spw_matrix *m, const struct spw_finder *f,
                      const struct spw_model_config *c)
{
    const bool mlp = m->role >= SPW_MATRIX_GATE && m->role <= SPW_MATRIX_DOWN;
    const bool shared = mlp && spw_has_shared_name(f, c, m->layer);
    char name[96];
    if (m->role == SPW_MATRIX_INPUT)
        return find_input(m, f, c);
    snprintf(name, sizeof name, "%s%s", shared ? "mlp.shared_expert." : roles[m->role].part,
             roles[m->role].name);
    const bool blocks = m->role == SPW_MATRIX_LRU_GATE || m->role == SPW_MATRIX_LRU_RATE;
    const bool taps = m->role == SPW_MATRIX_SOURCE_CONV1 || m->role == SPW_MATRIX_SOURCE_CONV2;
    m->form = blocks ? SPW_FORM_BLOCKS : taps ? SPW_FORM_TAPS : SPW_FORM_ROWS;
    if (taps)
        return spw_find_stacked(f, m->layer, name, m->n, m->k / SPW_CONV_TAPS, SPW_CONV_TAPS,
                                &m->tensor);
    return blocks ? spw_find_stacked(f, m->layer, name, m->n / m->k, m->k, m->k, &m->tensor)
                  : spw_find_in_layer(f, m->layer, name, m->n, m->k, &m->tensor);
}

/* The matrices of a layer with a state: see struct spw_mixer_config. */
static void mixer_shapes(const struct spw_model_config *c, uint64_t shapes[SPW_LAYER_MATRICES][2])
{
    const struct spw_mixer_config *m = &c->mixer;
    const uint64_t width = spw_mixer_width(m), channels = m->conv_channels, heads = m->heads;
    const bool delta = m->kind == SPW_MIXER_DELTA, pairs = m->grouped_rates;
    const uint64_t lru = m->kind == SPW_MIXER_LRU ? width : 0;
    const uint64_t block = lru ? width / m->gate_blocks : 0;
    const struct {
        enum spw_matrix_role role;
        uint64_t n, k;
    } all[] = {
        {SPW_MATRIX_IN,
         delta ? channels + (m->grouped ? width : 0)
         : lru ? lru
               : spw_mixer_in_width(m),
         c->hidden},
        {SPW_MATRIX_IN_GATE, delta && !m->grouped ? width : lru, c->hidden},
        {SPW_MATRIX_IN_BETA, delta ? (pairs ? 2 : 1) * heads : 0, c->hidden},
        {SPW_MATRIX_IN_RATE, delta && !pairs ? heads : 0, c->hidden},
        {SPW_MATRIX_LRU_GATE, lru, block},
        {SPW_MATRIX_LRU_RATE, lru, block},
        {SPW_MATRIX_SCAN, m->dt_rank ? m->dt_rank + 2 * (uint64_t)m->key_dim : 0, width},
        {SPW_MATRIX_SCAN_DT, width, m->dt_rank},
        {SPW_MATRIX_OUT, c->hidden, width},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        shapes[all[i].role][0] = all[i].n;
        shapes[all[i].role][1] = all[i].k;
    }
}

static int find_layer(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                      enum spw_dtype compute)
{
    const struct spw_model_config *c = w->config;
    const uint64_t width = spw_layer_mlp_width(c, layer), own = c->layer_inputs;
    const uint64_t latent = c->has_experts[layer] ? c->experts.latent : 0;
    const uint64_t q = spw_config_has_queries(c, layer) ? spw_config_q_width(c, layer) : 0;
    const bool stores = spw_config_attends(c, layer) && spw_config_stores_kv(c, layer);
    const uint64_t k = stores ? spw_config_kv_width(c, layer) : 0;
    const uint64_t source = spw_config_keeps_source(c, layer) ? spw_config_kv_width(c, layer) : 0;
    const uint64_t v = c->v_is_k[c->layer_kinds[layer]] ? 0 : k;
    const uint64_t gate = c->attention_gate == SPW_ATTENTION_GATE_APART ? q : 0;
    const uint64_t in_q = c->attention_gate == SPW_ATTENTION_GATE_IN_Q ? 2 : 1;
    uint64_t shapes[SPW_LAYER_MATRICES][2] = {
        [SPW_MATRIX_Q] = {q * in_q, c->hidden},
        [SPW_MATRIX_K] = {k, c->hidden},
        [SPW_MATRIX_V] = {v, c->hidden},
        [SPW_MATRIX_O] = {c->hidden, q},
        [SPW_MATRIX_SOURCE_K] = {source, c->hidden},
        [SPW_MATRIX_SOURCE_V] = {source, c->hidden},
        [SPW_MATRIX_SOURCE_CONV1] = {c->n_mels && !layer ? c->hidden : 0,
                                     (uint64_t)SPW_CONV_TAPS * c->n_mels},
        [SPW_MATRIX_SOURCE_CONV2] = {c->n_mels && !layer ? c->hidden : 0,
                                     (uint64_t)SPW_CONV_TAPS * c->hidden},
        [SPW_MATRIX_O_GATE] = {gate, c->hidden},
        [SPW_MATRIX_GATE] = {width, c->hidden},
        [SPW_MATRIX_UP] = {width, c->hidden},
        [SPW_MATRIX_DOWN] = {c->hidden, width},
        [SPW_MATRIX_LATENT_IN] = {latent, c->hidden},
        [SPW_MATRIX_LATENT_OUT] = {c->hidden, latent},
        [SPW_MATRIX_INPUT] = {own, c->hidden},
        [SPW_MATRIX_INPUT_GATE] = {own, c->hidden},
        [SPW_MATRIX_INPUT_OUT] = {c->hidden, own},
        [SPW_MATRIX_JOIN] = {spw_config_is_mtp(c, layer) ? c->hidden : 0, 2 * (uint64_t)c->hidden},
    };
    if (spw_config_has_state(c, layer))
        mixer_shapes(c, shapes);
    for (int r = 0; r < SPW_LAYER_MATRICES; r++) {
        if (!shapes[r][0] || !shapes[r][1] || (r == SPW_MATRIX_GATE && c->plain_mlp))
            continue;
        struct spw_matrix *m = &w->matrices[w->n_matrices++];
        *m = (struct spw_matrix){
            .role = (enum spw_matrix_role)r, .layer = layer, .n = shapes[r][0], .k = shapes[r][1]};
        SPW_TRY(find_in_joined(m, f, (const uint64_t(*)[2])shapes));
        if (!m->tensor)
            SPW_TRY(find_alone(m, f, c));
        m->type = product_type(m->tensor, compute);
        SPW_TRY(spw_find_scale(f, c, m->tensor, &m->scale));
    }
    return 0;
}

/* ---- blocks ---- */

/* One block for n matrices of a layer. */
static void lay_out_block(struct spw_weights *w, struct spw_weight_block *b, uint32_t layer,
                          uint32_t first, uint32_t n)
{
    *b = (struct spw_weight_block){.layer = layer, .first = first, .n = n};
    for (uint32_t i = b->first; i < b->first + b->n; i++) {
        struct spw_matrix *m = &w->matrices[i];
        bool joined = i > b->first && roles[m->role].joined && m->role == m[-1].role + 1 &&
                      m->type == m[-1].type;
        m->offset = joined ? b->bytes : spw_align_up(b->bytes, PACKED_ALIGN);
        b->bytes = m->offset + packed_bytes(m);
        b->matrix_bytes += packed_bytes(m);
    }
}

/* The number of rows in a block of the head: as many bytes as the largest layer, and a multiple of
 * a kernel's tile if there are enough rows. */
static uint32_t head_rows(const struct spw_weights *w, const struct spw_matrix *head)
{
    uint64_t most = 0;
    for (uint32_t b = 0; b < w->n_blocks; b++)
        most = spw_max_u64(most, w->blocks[b].bytes);
    uint64_t rows = most / spw_row_bytes(head->type, head->k);
    if (rows > 64)
        rows -= rows % 64;
    return (uint32_t)spw_min_u64(spw_max_u64(rows, 1), head->n);
}

static void cut_head(struct spw_weights *w, const struct spw_matrix *head)
{
    for (uint64_t row = 0; row < head->n; row += w->head_rows) {
        struct spw_matrix *m = &w->matrices[w->n_matrices];
        *m = *head;
        m->first_row = row;
        m->n = spw_min_u64(w->head_rows, head->n - row);
        w->blocks[w->n_blocks++] = (struct spw_weight_block){
            .layer = SPW_NO_LAYER,
            .first = w->n_matrices++,
            .n = 1,
            .bytes = packed_bytes(m),
            .matrix_bytes = packed_bytes(m),
        };
    }
}

/* Makes room in both tables. */
static int reserve(struct spw_weights *w, uint64_t n_matrices, uint64_t n_blocks)
{
    SPW_TRY(spw_resize(&w->matrices, n_matrices, sizeof *w->matrices));
    return spw_resize(&w->blocks, n_blocks, sizeof *w->blocks);
}

static void note_storage(struct spw_weights *w, uint32_t b)
{
    struct spw_weight_block *block = &w->blocks[b];
    struct spw_file_range ranges[SPW_FILE_PARTS];
    uint64_t lands[SPW_FILE_PARTS];
    block->read_bytes = spw_file_ranges_bytes(ranges, spw_weights_ranges(w, b, ranges, lands));
    block->as_stored = block->mappable = block->quantized = true;
    for (uint32_t i = block->first; i < block->first + block->n; i++) {
        const struct spw_matrix *m = &w->matrices[i];
        block->as_stored &= m->tensor->dtype == m->type && m->form == SPW_FORM_ROWS;
        block->mappable &= (uintptr_t)spw_matrix_data(m) % spw_type_of(m->type).align == 0;
        block->quantized &= spw_type_is_quantized(m->type) && m->form == SPW_FORM_ROWS;
    }
    block->mappable &= block->as_stored;
}

/* The role that the call of products with this one begins with: as model/forward.c calls them. */
static enum spw_matrix_role first_of_call(const struct spw_model_config *c,
                                          enum spw_matrix_role role)
{
    if (role == SPW_MATRIX_K || role == SPW_MATRIX_V)
        return c->attention_gate == SPW_ATTENTION_GATE_IN_Q ? SPW_MATRIX_K : SPW_MATRIX_Q;
    if (role >= SPW_MATRIX_IN && role <= SPW_MATRIX_IN_RATE)
        return SPW_MATRIX_IN;
    return role == SPW_MATRIX_UP ? SPW_MATRIX_GATE : role;
}

struct spw_block_row spw_weights_block_row(const struct spw_weights *w, uint32_t b)
{
    const struct spw_weight_block *block = &w->blocks[b];
    const struct spw_matrix *first = &w->matrices[block->first], *end = first + block->n;
    struct spw_block_row row = {0};
    uint64_t wide = 0;
    for (const struct spw_matrix *m = first; m < end; m++) {
        const enum spw_matrix_role call = first_of_call(w->config, m->role);
        const bool again = m > first && first_of_call(w->config, m[-1].role) == call;
        const bool gate = m->role == SPW_MATRIX_GATE;
        row.in += again ? 0 : m->k;
        row.out += gate ? 0 : m->n;
        wide = again ? wide + m->n : m->n;
        row.most_in = spw_max_u64(row.most_in, m->k);
        row.most_out = spw_max_u64(row.most_out, wide);
        row.most_gated = spw_max_u64(row.most_gated, gate ? m->n : 0);
    }
    return row;
}

/* ---- experts ---- */

static int add_expert(struct spw_weights *w, const struct spw_finder *f, uint32_t layer,
                      uint32_t expert, enum spw_dtype compute)
{
    struct spw_matrix *m = &w->matrices[w->n_matrices];
    const uint32_t n = spw_expert_matrices(w->config);
    SPW_TRY(spw_find_expert(m, f, w->config, layer, expert));
    for (uint32_t i = 0; i < n; i++)
        m[i].type =
            m[i].form == SPW_FORM_PARTS ? SPW_DTYPE_MXFP4 : product_type(m[i].tensor, compute);
    lay_out_block(w, &w->blocks[w->n_blocks + w->n_expert_blocks++], layer, w->n_matrices, n);
    w->n_matrices += n;
    return 0;
}

static int add_experts(struct spw_weights *w, const struct spw_finder *f, enum spw_dtype compute)
{
    const struct spw_model_config *c = w->config;
    uint64_t n = 0;
    w->layer_experts = spw_alloc(c->n_layers * sizeof *w->layer_experts);
    if (!w->layer_experts)
        return -ENOMEM;
    for (uint32_t l = 0; l < c->n_layers; l++)
        n += c->has_experts[l] ? c->experts.n : 0;
    SPW_TRY(reserve(w, w->n_matrices + n * SPW_EXPERT_MATRICES, w->n_blocks + n));
    for (uint32_t l = 0; l < c->n_layers; l++) {
        w->layer_experts[l] = c->has_experts[l] ? w->n_blocks + w->n_expert_blocks : SPW_NO_BLOCK;
        for (uint32_t e = 0; c->has_experts[l] && e < c->experts.n; e++)
            SPW_TRY(add_expert(w, f, l, e, compute));
    }
    return 0;
}

/* Whether the matrices of an expert have the types of those of the expert before it. */
static bool is_alike(const struct spw_weights *w, uint32_t b)
{
    const uint32_t n = w->blocks[b].n;
    const struct spw_matrix *m = &w->matrices[w->blocks[b].first], *other = m - n;
    for (uint32_t i = 0; i < n; i++)
        if (m[i].type != other[i].type)
            return false;
    return true;
}

/* What a plan must know of all experts, and asks often. */
static int sum_experts(struct spw_weights *w)
{
    enum { PAGE = 4096 };
    w->expert_pages = spw_alloc_zero(w->n_expert_blocks + 1, sizeof *w->expert_pages);
    if (!w->expert_pages)
        return -ENOMEM;
    w->experts_stored = w->experts_mappable = w->experts_alike = true;
    for (uint32_t i = 0; i < w->n_expert_blocks; i++) {
        const struct spw_weight_block *b = &w->blocks[w->n_blocks + i];
        w->expert_pages[i + 1] = w->expert_pages[i] + spw_align_up(b->bytes, PAGE);
        w->expert_frame_bytes = spw_max_u64(
            w->expert_frame_bytes, spw_align_up(spw_max_u64(b->bytes, b->read_bytes), PAGE));
        w->experts_stored &= b->as_stored;
        w->experts_mappable &= b->mappable;
        if (i && b->layer == b[-1].layer)
            w->experts_alike &= is_alike(w, w->n_blocks + i);
    }
    return 0;
}

/* ---- all blocks ---- */

static int lay_out_blocks(struct spw_weights *w, const struct spw_finder *f,
                          const struct spw_matrix *head, enum spw_dtype compute)
{
    const uint32_t n_layers = w->config->n_layers;
    for (uint32_t l = 0, first = 0; l < n_layers; l++) {
        uint32_t n = 0;
        while (first + n < w->n_matrices && w->matrices[first + n].layer == l)
            n++;
        lay_out_block(w, &w->blocks[w->n_blocks++], l, first, n);
        first += n;
    }
    w->head_rows = head_rows(w, head);
    uint64_t n = spw_div_up(head->n, w->head_rows);
    SPW_TRY(reserve(w, w->n_matrices + n, w->n_blocks + n));
    cut_head(w, head);
    SPW_TRY(add_experts(w, f, compute));
    w->pieces = spw_alloc_zero(w->n_matrices, sizeof *w->pieces);
    if (!w->pieces)
        return -ENOMEM;
    for (uint32_t i = 0; i < w->n_matrices; i++) { /* meaningless if the type is another one */
        const struct spw_matrix *m = &w->matrices[i];
        w->pieces[i] = (struct spw_piece){spw_matrix_data(m), m->offset, packed_bytes(m)};
    }
    for (uint32_t b = 0; b < w->n_blocks + w->n_expert_blocks; b++)
        note_storage(w, b);
    return sum_experts(w);
}

/* The table of the numbers that layers get beside the hidden state. */
static int open_inputs(struct spw_weights *w, const struct spw_finder *f)
{
    const struct spw_model_config *c = w->config;
    struct spw_matrix *m = &w->inputs;
    *m = (struct spw_matrix){.role = SPW_MATRIX_EMBEDDING,
                             .layer = SPW_NO_LAYER,
                             .n = c->input_vocab,
                             .k = (uint64_t)c->n_layers * c->layer_inputs};
    if (!c->layer_inputs)
        return 0;
    SPW_TRY(spw_find_tensor(f, "model.embed_tokens_per_layer.weight", m->n, m->k, &m->tensor));
    m->type = m->tensor->dtype;
    return spw_find_table_type(f, c, m->tensor);
}

static int open_source_embedding(struct spw_weights *w, const struct spw_finder *f)
{
    const struct spw_model_config *c = w->config;
    struct spw_matrix *m = &w->source_embedding;
    *m = w->embedding;
    if (!c->own_source_rows)
        return 0;
    m->n = c->source_vocab;
    SPW_TRY(spw_find_tensor(f, "model.source_embed_tokens.weight", m->n, m->k, &m->tensor));
    m->type = m->tensor->dtype;
    return spw_find_table_type(f, c, m->tensor);
}

static int open_matrices(struct spw_weights *w, const struct spw_finder *f, enum spw_dtype compute)
{
    const struct spw_model_config *c = w->config;
    struct spw_matrix head = {
        .role = SPW_MATRIX_HEAD, .layer = SPW_NO_LAYER, .n = c->vocab, .k = c->hidden};
    w->embedding = head;
    w->embedding.role = SPW_MATRIX_EMBEDDING;
    SPW_TRY(reserve(w, (uint64_t)c->n_layers * SPW_LAYER_MATRICES, c->n_layers));
    for (uint32_t l = 0; l < c->n_layers; l++)
        SPW_TRY(find_layer(w, f, l, compute));
    SPW_TRY(spw_find_ends(f, c, &w->embedding.tensor, &head.tensor));
    SPW_TRY(spw_find_scale(f, c, head.tensor, &head.scale));
    w->embedding.type = w->embedding.tensor->dtype;
    SPW_TRY(open_source_embedding(w, f));
    SPW_TRY(open_inputs(w, f));
    SPW_TRY(spw_positions_open(w, f));
    head.type = product_type(head.tensor, compute);
    return lay_out_blocks(w, f, &head, compute);
}

/* ---- open, prepare ---- */

int spw_weights_open(struct spw_weights **out, const struct spw_model_config *config,
                     const struct spw_tensors *tensors, enum spw_dtype compute,
                     struct spw_error *err)
{
    struct spw_weights *w = spw_alloc_zero(1, sizeof *w);
    if (!w)
        return spw_fail(err, -ENOMEM, "out of memory for the table of weights");
    w->config = config;
    w->tensors = tensors;
    w->is_read = spw_alloc_zero(spw_tensors_count(tensors), sizeof *w->is_read);
    struct spw_finder f = {.tensors = tensors, .found = w->is_read, .err = err};
    int rc = w->is_read ? spw_finder_open(&f, config) : -ENOMEM;
    if (!rc)
        rc = open_matrices(w, &f, compute);
    if (!rc)
        rc = spw_small_open(w, &f);
    if (!rc)
        rc = spw_find_check_all(&f, config);
    spw_free(f.named);
    if (rc) {
        spw_weights_close(w);
        return spw_fail(err, rc, "out of memory for the table of weights");
    }
    *out = w;
    return 0;
}

void spw_weights_close(struct spw_weights *w)
{
    if (!w)
        return;
    spw_free(w->is_read);
    spw_free(w->matrices);
    spw_free(w->pieces);
    spw_free(w->blocks);
    spw_free(w->layer_experts);
    spw_free(w->expert_pages);
    spw_free(w->small_layers);
    spw_free(w->small);
    spw_free(w->notes);
    spw_free(w->rope);
    spw_free(w);
}

int spw_weights_prepare(struct spw_weights *w, struct spw_error *err)
{
    spw_weights_forget_small(w);
    w->small = spw_alloc_zero(w->n_small, sizeof *w->small);
    if (!w->small)
        return spw_fail(err, -ENOMEM, "out of memory for norms and biases");
    spw_small_read(w);
    const size_t rope_bytes = (w->n_small - w->first_rope) * sizeof *w->rope;
    if (!w->rope) {
        w->rope = spw_alloc(rope_bytes);
        if (!w->rope)
            return spw_fail(err, -ENOMEM, "out of memory for rope frequencies");
        memcpy(w->rope, w->small + w->first_rope, rope_bytes);
        SPW_TRY(spw_weights_rope(w, 1, err));
    }
    memcpy(w->small + w->first_rope, w->rope, rope_bytes);
    return 0;
}

int spw_weights_prepare_blank(struct spw_weights *w)
{
    spw_weights_forget_small(w);
    w->small = spw_alloc_zero(w->n_small, sizeof *w->small);
    if (!w->rope)
        w->rope = spw_alloc_zero(w->n_small - w->first_rope, sizeof *w->rope);
    return w->small && w->rope ? 0 : -ENOMEM;
}

void spw_weights_forget_small(struct spw_weights *w)
{
    spw_free(w->small);
    w->small = NULL;
}

/* ---- where a block lies ---- */

void spw_weights_map(struct spw_weights *w, uint32_t b)
{
    assert(w->blocks[b].mappable);
    w->blocks[b].mapped = true;
}

uint32_t spw_weights_ranges(const struct spw_weights *w, uint32_t b, struct spw_file_range *out,
                            uint64_t *lands)
{
    const struct spw_matrix *m = &w->matrices[w->blocks[b].first];
    struct spw_file_part parts[SPW_FILE_PARTS];
    static_assert((int)SPW_LAYER_MATRICES <= (int)SPW_FILE_PARTS,
                  "each matrix of a layer is a part");
    for (uint32_t i = 0; i < w->blocks[b].n; i++) {
        const struct spw_tensor *t = m[i].tensor;
        const uint64_t at = (uint64_t)(spw_matrix_data(&m[i]) - (const uint8_t *)t->data);
        parts[i] =
            (struct spw_file_part){t->file_index, t->file_offset + at, spw_matrix_bytes(&m[i])};
    }
    return spw_file_ranges(parts, w->blocks[b].n, out, lands);
}

void spw_weights_place_as_in_file(struct spw_weights *w, uint32_t b)
{
    struct spw_file_range ranges[SPW_FILE_PARTS];
    uint64_t lands[SPW_FILE_PARTS];
    assert(w->blocks[b].mappable);
    spw_weights_ranges(w, b, ranges, lands);
    for (uint32_t i = 0; i < w->blocks[b].n; i++)
        w->pieces[w->blocks[b].first + i].offset = lands[i];
}

void spw_weights_place_packed(struct spw_weights *w)
{
    for (uint32_t i = 0; i < w->n_matrices; i++)
        w->pieces[i].offset = w->matrices[i].offset;
    for (uint32_t b = 0; b < w->n_blocks + w->n_expert_blocks; b++)
        w->blocks[b].mapped = false;
}

static struct spw_operand operand(const struct spw_weights *w, uint32_t i, const uint8_t *at)
{
    const struct spw_matrix *m = &w->matrices[i];
    const struct spw_piece *p = &w->pieces[i];
    return (struct spw_operand){
        .w = at ? at + p->offset : p->from, .type = m->type, .n = m->n, .k = m->k};
}

void spw_weights_operands(const struct spw_weights *w, uint32_t b, const uint8_t *at,
                          struct spw_layer_weights *out)
{
    const struct spw_weight_block *block = &w->blocks[b];
    *out = (struct spw_layer_weights){0};
    for (uint32_t i = block->first; i < block->first + block->n; i++)
        out->of[w->matrices[i].role] = operand(w, i, at);
}

void spw_weights_operands_as_read(const struct spw_weights *w, uint32_t b, const uint8_t *at,
                                  const uint64_t *lands, struct spw_layer_weights *out)
{
    const struct spw_weight_block *block = &w->blocks[b];
    *out = (struct spw_layer_weights){0};
    for (uint32_t i = 0; i < block->n; i++) {
        const struct spw_matrix *m = &w->matrices[block->first + i];
        out->of[m->role] =
            (struct spw_operand){.w = at + lands[i], .type = m->type, .n = m->n, .k = m->k};
    }
}

struct spw_operand spw_weights_head(const struct spw_weights *w, uint32_t b, const uint8_t *at)
{
    return operand(w, w->blocks[b].first, at);
}
