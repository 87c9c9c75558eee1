/* The matrices of experts: a weight block for each expert. See weights_parts.h. */
#include "model/weights/weights_parts.h"

#include <stdio.h>

/* How files store experts. EACH: a tensor for each matrix, "PREFIX3.NAME" for expert 3. STACKED: a
 * tensor [experts][rows][columns] for each role, "PREFIXNAME". JOINED: as stacked, and the rows of
 * up follow those of gate. COLUMNS: as joined, but rows are columns (SPW_FORM_COLUMNS), and those
 * of gate and up alternate, unless the family has halves. PARTS: they alternate, and rows are in
 * parts (SPW_FORM_PARTS). */
static const struct form {
    enum { EACH, STACKED, JOINED, COLUMNS, PARTS } how;
    const char *prefix, *gate, *up, *down;
} forms[] = {
    {EACH, "mlp.experts.", "gate_proj.weight", "up_proj.weight", "down_proj.weight"},
    {EACH, "block_sparse_moe.experts.", "w1.weight", "w3.weight", "w2.weight"},
    {STACKED, "mlp.experts.", "gate_proj.weight", "up_proj.weight", "down_proj.weight"},
    {PARTS, "mlp.experts.", "gate_up_proj_blocks", "gate_up_proj_blocks", "down_proj_blocks"},
    {COLUMNS, "mlp.experts.", "gate_up_proj", "gate_up_proj", "down_proj"},
    {JOINED, "mlp.experts.", "gate_up_proj", "gate_up_proj", "down_proj"},
    {JOINED, "mlp.experts.", "gate_up_proj.weight", "gate_up_proj.weight", "down_proj.weight"},
    {JOINED, "block_sparse_moe.experts.", "gate_up_proj", "gate_up_proj", "down_proj"},
    {JOINED, "block_sparse_moe.", "input_linear.weight", "input_linear.weight",
     "output_linear.weight"},
    {JOINED, "experts.", "gate_up_proj", "gate_up_proj", "down_proj"},
};

static const char *const routers[] = {"mlp.gate.weight",
                                      "mlp.gate.wg.weight",
                                      "mlp.router.weight",
                                      "block_sparse_moe.gate.weight",
                                      "block_sparse_moe.router.weight",
                                      "block_sparse_moe.router.layer.weight",
                                      "router.proj.weight"};
/* With the dot, to which the name of a matrix is added. */
static const char *const shared[] = {"mlp.shared_expert.", "mlp.shared_experts.", "mlp.shared_mlp.",
                                     "mlp."};

enum { N_FORMS = sizeof forms / sizeof *forms };

enum { NAME_BYTES = 96 };

static void name_of(const struct form *form, const char *name, uint32_t expert,
                    char out[NAME_BYTES])
{
    if (form->how == EACH)
        snprintf(out, NAME_BYTES, "%s%u.%s", form->prefix, expert, name);
    else
        snprintf(out, NAME_BYTES, "%s%s", form->prefix, name);
}

/* Whether the tensor of all experts has matrices of this shape. */
static bool has_shape(const struct spw_finder *f, uint32_t layer, const char *prefix,
                      const char *name, uint64_t rows, uint64_t cols)
{
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const struct spw_tensor *t = spw_find_by_layer(f, layer, full);
    return t && t->n_dims == 3 && t->shape[1] == rows && t->shape[2] == cols;
}

/* Whether a row is an output in the tensors of this form. In families that have either order the
 * shapes tell, those of down where gate and up are square. */
static bool has_rows(const struct spw_finder *f, const struct spw_model_config *c, uint32_t layer,
                     const struct form *form)
{
    const uint64_t hidden = c->hidden, width = c->experts.intermediate;
    if (!c->experts.either_order)
        return !c->experts.transposed;
    return 2 * width == hidden ? has_shape(f, layer, form->prefix, form->down, hidden, width)
                               : has_shape(f, layer, form->prefix, form->gate, 2 * width, hidden);
}

/* The form of a layer: its first expert tells. If there is none, the error names what the first
 * form would have. */
static const struct form *form_of(const struct spw_finder *f, const struct spw_model_config *c,
                                  uint32_t layer)
{
    char name[NAME_BYTES];
    for (size_t i = 0; i < N_FORMS; i++) {
        if ((forms[i].how == COLUMNS && has_rows(f, c, layer, &forms[i])) ||
            (forms[i].how == JOINED && !has_rows(f, c, layer, &forms[i])))
            continue;
        name_of(&forms[i], forms[i].gate, 0, name);
        if (spw_find_by_layer(f, layer, name))
            return &forms[i];
    }
    return &forms[0];
}

/* A tensor [experts][rows or columns] of all experts. */
static int find_transposed(struct spw_matrix *m, const struct spw_finder *f,
                           const struct spw_model_config *c, const struct form *form,
                           uint32_t expert, const char *name)
{
    const bool down = m->role == SPW_MATRIX_DOWN;
    const uint64_t rows = down ? m->n : 2 * m->n;
    const bool halves = c->experts.halves;
    const uint32_t first = m->role != SPW_MATRIX_UP ? 0 : halves ? (uint32_t)m->n : 1;
    m->step = down || halves ? 1 : 2;
    if (form->how == COLUMNS) {
        m->form = SPW_FORM_COLUMNS;
        m->first_row = expert * m->k;
        m->first_column = first;
        return spw_find_stacked(f, m->layer, name, c->experts.n, m->k, rows, &m->tensor);
    }
    const uint64_t blocks[] = {c->experts.n, rows, m->k / SPW_MXFP4_GROUP, SPW_MXFP4_GROUP / 2};
    if (m->k % SPW_MXFP4_GROUP)
        return spw_fail(f->err, -EINVAL,
                        "model weights: tensor %s: rows of %llu, expected whole "
                        "groups of 32",
                        name, (unsigned long long)m->k);
    m->form = SPW_FORM_PARTS;
    m->first_row = expert * rows + first;
    SPW_TRY(spw_find_bytes(f, m->layer, name, blocks, 4, &m->tensor));
    name = down ? "mlp.experts.down_proj_scales" : "mlp.experts.gate_up_proj_scales";
    return spw_find_bytes(f, m->layer, name, blocks, 3, &m->scale);
}

static int find_matrix(struct spw_matrix *m, const struct spw_finder *f,
                       const struct spw_model_config *c, const struct form *form, uint32_t expert)
{
    const bool up = m->role == SPW_MATRIX_UP, down = m->role == SPW_MATRIX_DOWN;
    const uint64_t rows = form->how == JOINED && !down ? 2 * m->n : m->n;
    char name[NAME_BYTES];
    name_of(form, down ? form->down : up ? form->up : form->gate, expert, name);
    if (form->how == EACH) {
        SPW_TRY(spw_find_in_layer(f, m->layer, name, m->n, m->k, &m->tensor));
        return spw_find_scale(f, c, m->tensor, &m->scale);
    }
    if (form->how == COLUMNS || form->how == PARTS)
        return find_transposed(m, f, c, form, expert, name);
    m->first_row = expert * rows + (form->how == JOINED && up ? m->n : 0);
    return spw_find_stacked(f, m->layer, name, c->experts.n, rows, m->k, &m->tensor);
}

int spw_find_expert(struct spw_matrix out[SPW_EXPERT_MATRICES], const struct spw_finder *f,
                    const struct spw_model_config *c, uint32_t layer, uint32_t expert)
{
    static const enum spw_matrix_role roles[SPW_EXPERT_MATRICES] = {SPW_MATRIX_GATE, SPW_MATRIX_UP,
                                                                    SPW_MATRIX_DOWN};
    const struct form *form = form_of(f, c, layer);
    for (int i = 0; i < SPW_EXPERT_MATRICES; i++) {
        const bool down = roles[i] == SPW_MATRIX_DOWN;
        out[i] = (struct spw_matrix){.role = roles[i],
                                     .layer = layer,
                                     .n = down ? c->hidden : c->experts.intermediate,
                                     .k = down ? c->experts.intermediate : c->hidden};
        SPW_TRY(find_matrix(&out[i], f, c, form, expert));
    }
    return 0;
}

int spw_find_expert_biases(struct spw_expert_biases *out, const struct spw_finder *f,
                           const struct spw_model_config *c, uint32_t layer)
{
    const uint64_t n = c->experts.n, width = c->experts.intermediate;
    const char *joined = "mlp.experts.gate_up_proj_bias";
    *out = (struct spw_expert_biases){0};
    if (spw_find_by_layer(f, layer, joined)) {
        SPW_TRY(spw_find_in_layer(f, layer, joined, n, 2 * width, &out->gate));
        return spw_find_in_layer(f, layer, "mlp.experts.down_proj_bias", n, c->hidden, &out->down);
    }
    SPW_TRY(spw_find_in_layer(f, layer, "mlp.experts.gate_proj.bias", n, width, &out->gate));
    SPW_TRY(spw_find_in_layer(f, layer, "mlp.experts.up_proj.bias", n, width, &out->up));
    return spw_find_in_layer(f, layer, "mlp.experts.down_proj.bias", n, c->hidden, &out->down);
}

const char *spw_find_router_name(const struct spw_finder *f, uint32_t layer)
{
    for (size_t i = 0; i < sizeof routers / sizeof *routers; i++)
        if (spw_find_by_layer(f, layer, routers[i]))
            return routers[i];
    return routers[0];
}

const char *spw_find_shared_prefix(const struct spw_finder *f, uint32_t layer)
{
    char name[NAME_BYTES];
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        snprintf(name, sizeof name, "%sdown_proj.weight", shared[i]);
        if (spw_find_by_layer(f, layer, name))
            return shared[i];
    }
    return shared[0];
}
