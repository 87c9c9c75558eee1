/* The matrices of experts: a weight block for each expert. See weights_parts.h. */
#include "model/weights/weights_parts.h"

#include <stdio.h>

/* How files store experts. EACH: a tensor for each matrix, "PREFIX3.NAME" for expert 3. STACKED: a
 * tensor [experts][rows][columns] for each role, "PREFIXNAME". JOINED: as stacked, and the rows of
 * up follow those of gate. */
static const struct form {
    enum { EACH, STACKED, JOINED } how;
    const char *prefix, *gate, *up, *down;
} forms[] = {
    {EACH, "mlp.experts.", "gate_proj.weight", "up_proj.weight", "down_proj.weight"},
    {EACH, "block_sparse_moe.experts.", "w1.weight", "w3.weight", "w2.weight"},
    {STACKED, "mlp.experts.", "gate_proj.weight", "up_proj.weight", "down_proj.weight"},
    {JOINED, "mlp.experts.", "gate_up_proj", "gate_up_proj", "down_proj"},
    {JOINED, "block_sparse_moe.", "input_linear.weight", "input_linear.weight",
     "output_linear.weight"},
};

static const char *const routers[] = {"mlp.gate.weight", "block_sparse_moe.gate.weight",
                                      "block_sparse_moe.router.layer.weight"};
/* With the dot, to which the name of a matrix is added. */
static const char *const shared[] = {"mlp.shared_expert.", "mlp.shared_experts."};

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

/* The form of a layer: its first expert tells. If there is none, the error names what the first
 * form would have. */
static const struct form *form_of(const struct spw_finder *f, uint32_t layer)
{
    char name[NAME_BYTES];
    for (size_t i = 0; i < N_FORMS; i++) {
        name_of(&forms[i], forms[i].gate, 0, name);
        if (spw_find_by_layer(f, layer, name))
            return &forms[i];
    }
    return &forms[0];
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
    m->first_row = expert * rows + (form->how == JOINED && up ? m->n : 0);
    return spw_find_stacked(f, m->layer, name, c->experts.n, rows, m->k, &m->tensor);
}

int spw_find_expert(struct spw_matrix out[SPW_EXPERT_MATRICES], const struct spw_finder *f,
                    const struct spw_model_config *c, uint32_t layer, uint32_t expert)
{
    static const enum spw_matrix_role roles[SPW_EXPERT_MATRICES] = {SPW_MATRIX_GATE, SPW_MATRIX_UP,
                                                                    SPW_MATRIX_DOWN};
    const struct form *form = form_of(f, layer);
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
        snprintf(name, sizeof name, "%sup_proj.weight", shared[i]);
        if (spw_find_by_layer(f, layer, name))
            return shared[i];
    }
    return shared[0];
}
