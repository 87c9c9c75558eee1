/* The orders of rows and columns in GGUF files: see quantize_order.h. */
#include "model/quantize_order.h"

#include <string.h>

void spw_gguf_order_delta(struct spw_gguf_order *o, const struct spw_mixer_config *m,
                          const char *name, bool tiles)
{
    const bool is_qkv = strstr(name, ".in_proj.") || strstr(name, ".conv1d.");
    const bool gate = strstr(name, ".gate_proj.");
    o->ungrouped = m->grouped && strstr(name, ".in_proj.");
    if (!tiles || !strstr(name, "linear_attn.") || strstr(name, ".norm."))
        return;
    o->columns = strstr(name, ".out_proj.");
    o->tile_first = is_qkv ? 2 * (uint64_t)m->key_heads * m->key_dim : 0;
    o->tile = is_qkv || gate || o->columns ? m->value_dim : 1;
}

static uint64_t tiled(const struct spw_gguf_order *o, const struct spw_mixer_config *m, uint64_t i)
{
    if (i < o->tile_first)
        return i;
    const uint64_t head = (i - o->tile_first) / o->tile, in_head = (i - o->tile_first) % o->tile;
    const uint64_t its = head % m->key_heads * (m->heads / m->key_heads) + head / m->key_heads;
    return o->tile_first + its * o->tile + in_head;
}

static uint64_t ungrouped(const struct spw_mixer_config *m, uint64_t i)
{
    const uint64_t keys = (uint64_t)m->key_heads * m->key_dim;
    const uint64_t values = (uint64_t)m->heads / m->key_heads * m->value_dim; /* of a key head */
    const uint64_t group = 2 * (m->key_dim + values), all = values * m->key_heads;
    if (i < 2 * keys)
        return i % keys / m->key_dim * group + i / keys * m->key_dim + i % m->key_dim;
    i -= 2 * keys;
    return i % all / values * group + 2 * m->key_dim + i / all * values + i % values;
}

uint64_t spw_gguf_order_row(const struct spw_gguf_order *o, const struct spw_mixer_config *m,
                            uint64_t r)
{
    if (o->ungrouped)
        return ungrouped(m, o->ungrouped_first + r);
    if (o->tile && !o->columns)
        return tiled(o, m, r);
    const uint64_t width = o->head_dim, in_head = width ? r % width : 0;
    return width ? r - in_head + in_head % 2 * (width / 2) + in_head / 2 : r;
}

uint64_t spw_gguf_order_column(const struct spw_gguf_order *o, const struct spw_mixer_config *m,
                               uint64_t i)
{
    return o->tile && o->columns ? tiled(o, m, i) : i;
}
