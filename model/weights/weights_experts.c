/* The matrices of experts: a weight block for each expert. See weights_parts.h. */
#include "model/weights/weights_parts.h"

#include <stdio.h>

/* How files store experts. EACH: a tensor for each matrix, "3.NAME" for expert 3. STACKED: a
 * tensor [experts][rows][columns] for each role. JOINED: as stacked, and the rows of
 * up follow those of gate. COLUMNS: as joined, but rows are columns (SPW_FORM_COLUMNS), and those
 * of gate and up alternate, unless the family has halves. PARTS: they alternate, and rows are in
 * parts (SPW_FORM_PARTS). */
static const struct form {
    enum { EACH, STACKED, JOINED, COLUMNS, PARTS } how;
    const char *gate, *up, *down; /* after "mlp.experts." */
} forms[] = {
    {EACH, "gate_proj.weight", "up_proj.weight", "down_proj.weight"},
    {EACH, "w1.weight", "w3.weight", "w2.weight"},
    {STACKED, "gate_proj.weight", "up_proj.weight", "down_proj.weight"},
    {STACKED, "gate_proj", "up_proj", "down_proj"},
    {PARTS, "gate_up_proj_blocks", "gate_up_proj_blocks", "down_proj_blocks"},
    {COLUMNS, "gate_up_proj", "gate_up_proj", "down_proj"},
    {JOINED, "gate_up_proj", "gate_up_proj", "down_proj"},
    {JOINED, "gate_up_proj.weight", "gate_up_proj.weight", "down_proj.weight"},
};

enum { N_FORMS = sizeof forms / sizeof *forms, NAME_BYTES = 96 };

static void name_of(const struct form *form, const char *name, uint32_t expert,
                    char out[NAME_BYTES])
{
    if (form->how == EACH)
        snprintf(out, NAME_BYTES, "mlp.experts.%u.%s", expert, name);
    else
        snprintf(out, NAME_BYTES, "mlp.experts.%s", name);
}

/* Whether the tensor of all experts has matrices of this shape. */
static bool has_shape(const struct spw_finder *f, uint32_t layer, const struct form *form,
                      const char *name, uint64_t rows, uint64_t cols)
{
    char full[NAME_BYTES];
    name_of(form, name, 0, full);
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
    return 2 * width == hidden ? has_shape(f, layer, form, form->down, hidden, width)
                               : has_shape(f, layer, form, form->gate, 2 * width, hidden);
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
        name_of(&forms[i], forms[i].up, 0, name);
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
    const struct form *form = form_of(f, c, layer);
    const uint64_t row = spw_config_expert_row(c), width = c->experts.intermediate;
    for (uint32_t r = c->plain_mlp ? SPW_MATRIX_UP : SPW_MATRIX_GATE; r <= SPW_MATRIX_DOWN; r++) {
        const bool down = r == SPW_MATRIX_DOWN;
        *out = (struct spw_matrix){.role = (enum spw_matrix_role)r,
                                   .layer = layer,
                                   .n = down ? row : width,
                                   .k = down ? width : row};
        SPW_TRY(find_matrix(out++, f, c, form, expert));
    }
    return 0;
}
