/* Nodes of a grammar: see nodes.h. */
#include "model/text/grammar/nodes.h"

#include "base/grow.h"

#include <string.h>

/* ---- the grammar ---- */

int spw_grammar_begin(struct spw_grammar **out, struct spw_error *err)
{
    struct spw_grammar *g = spw_alloc_zero(1, sizeof *g);
    *out = g;
    if (!g)
        return spw_fail(err, -ENOMEM, "no memory for a grammar");
    g->err = err;
    spw_node_list(g, SPW_NODE_SEQUENCE, NULL, 0);
    return 0;
}

void spw_grammar_close(struct spw_grammar *g)
{
    if (!g)
        return;
    spw_free(g->nodes);
    spw_free(g->links);
    spw_free(g->sets);
    spw_free(g);
}

/* Whether the node's `least` became smaller. */
static bool lower(struct spw_grammar *g, struct spw_node *x)
{
    const bool is_sequence = x->kind == SPW_NODE_SEQUENCE, is_choice = x->kind == SPW_NODE_CHOICE;
    uint32_t least = is_choice ? UINT8_MAX : 0;
    for (uint32_t i = 0; i < x->n; i++) {
        const uint32_t one = g->nodes[g->links[x->at + i]].least;
        least = is_choice ? (one < least ? one : least) : spw_max_u32(least, one);
    }
    if (x->kind == SPW_NODE_SET || (x->kind == SPW_NODE_REPEAT && !x->min))
        least = 0;
    least += is_sequence && x->nests;
    if (least >= x->least)
        return false;
    x->least = (uint8_t)least;
    return true;
}

/* Children stand mostly before their node, but behind one that was reserved. */
static void find_least(struct spw_grammar *g)
{
    bool changed = true;
    for (size_t i = 0; i < g->n_nodes; i++)
        g->nodes[i].least = UINT8_MAX;
    while (changed) {
        changed = false;
        for (size_t i = 0; i < g->n_nodes; i++)
            changed |= lower(g, &g->nodes[i]);
        for (size_t i = g->n_nodes; changed && i-- > 0;)
            lower(g, &g->nodes[i]);
    }
}

int spw_grammar_finish(struct spw_grammar **out, uint32_t root)
{
    struct spw_grammar *g = *out;
    const uint32_t breaks = spw_node_repeat(g, spw_node_byte(g, '\n'), 0, 2);
    g->root = root;
    g->root_after = SPW_SEQUENCE(g, breaks, root);
    if (!g->rc)
        find_least(g);
    if (!g->rc && g->nodes[root].least > SPW_GRAMMAR_DEEPEST)
        g->rc =
            spw_fail(g->err, -EINVAL,
                     "no text fits the schema: bounds exclude each other, or it contains itself "
                     "without an end");
    const int rc = g->rc;
    if (rc == -ENOMEM)
        spw_fail(g->err, rc, "no memory for a grammar");
    g->err = NULL;
    if (rc) {
        spw_grammar_close(g);
        *out = NULL;
    }
    return rc;
}

/* ---- nodes ---- */

/* The number of a new node; 0 after a failure. */
static uint32_t add(struct spw_grammar *g, const struct spw_node *node)
{
    if (!g->rc && g->n_nodes == SPW_GRAMMAR_MOST_NODES)
        g->rc = spw_fail(g->err, -E2BIG, "the grammar is too large: more than %d parts",
                         SPW_GRAMMAR_MOST_NODES);
    if (!g->rc)
        g->rc = spw_grow(&g->nodes, &g->nodes_capacity, g->n_nodes + 1, sizeof *g->nodes);
    if (g->rc)
        return 0;
    g->nodes[g->n_nodes] = *node;
    return (uint32_t)g->n_nodes++;
}

uint32_t spw_node_list(struct spw_grammar *g, enum spw_node_kind kind, const uint32_t *children,
                       size_t n)
{
    struct spw_node node = {.kind = kind, .at = (uint32_t)g->n_links, .n = (uint32_t)n};
    if (!g->rc && n)
        g->rc = spw_grow(&g->links, &g->links_capacity, g->n_links + n, sizeof *g->links);
    if (g->rc)
        return 0;
    if (n)
        memcpy(g->links + g->n_links, children, n * sizeof *children);
    g->n_links += n;
    for (size_t i = 0; i < n && kind == SPW_NODE_CHOICE; i++)
        node.is_plain |= g->nodes[children[i]].is_plain;
    return add(g, &node);
}

uint32_t spw_node_reserve(struct spw_grammar *g)
{
    return spw_node_list(g, SPW_NODE_SEQUENCE, (const uint32_t[]){0}, 1);
}

void spw_node_define(struct spw_grammar *g, uint32_t reserved, uint32_t as)
{
    if (!g->rc)
        g->links[g->nodes[reserved].at] = as;
}

uint32_t spw_node_repeat(struct spw_grammar *g, uint32_t child, uint32_t min, uint32_t max)
{
    const uint32_t node = spw_node_list(g, SPW_NODE_REPEAT, &child, 1);
    if (!g->rc) {
        g->nodes[node].min = min;
        g->nodes[node].max = max;
    }
    return node;
}

uint32_t spw_node_maybe(struct spw_grammar *g, uint32_t child)
{
    return spw_node_repeat(g, child, 0, 1);
}

uint32_t spw_node_nests(struct spw_grammar *g, uint32_t node)
{
    if (!g->rc)
        g->nodes[node].nests = true;
    return node;
}

uint32_t spw_node_quoted(struct spw_grammar *g, uint32_t content)
{
    const uint32_t quote = spw_node_byte(g, '"');
    if (!g->rc && g->nodes[content].kind == SPW_NODE_REPEAT)
        g->nodes[content].is_quoted = true;
    return SPW_SEQUENCE(g, quote, content, quote);
}

uint32_t spw_node_set(struct spw_grammar *g, const struct spw_byte_set *set)
{
    const struct spw_node node = {.kind = SPW_NODE_SET, .at = (uint32_t)g->n_sets};
    if (!g->rc)
        g->rc = spw_grow(&g->sets, &g->sets_capacity, g->n_sets + 1, sizeof *g->sets);
    if (g->rc)
        return 0;
    g->sets[g->n_sets++] = *set;
    return add(g, &node);
}

static void add_bytes(struct spw_byte_set *set, unsigned first, unsigned last)
{
    for (unsigned c = first; c <= last; c++)
        set->bits[c / 64] |= UINT64_C(1) << c % 64;
}

static uint32_t range(struct spw_grammar *g, unsigned first, unsigned last)
{
    struct spw_byte_set set = {0};
    add_bytes(&set, first, last);
    return spw_node_set(g, &set);
}

uint32_t spw_node_byte(struct spw_grammar *g, unsigned char byte)
{
    return range(g, byte, byte);
}

uint32_t spw_node_text(struct spw_grammar *g, const char *text, size_t bytes)
{
    uint32_t *each = spw_alloc((bytes + 1) * sizeof *each);
    if (!each) {
        g->rc = g->rc ? g->rc : -ENOMEM;
        return 0;
    }
    for (size_t i = 0; i < bytes; i++)
        each[i] = spw_node_byte(g, (unsigned char)text[i]);
    const uint32_t node = spw_node_list(g, SPW_NODE_SEQUENCE, each, bytes);
    spw_free(each);
    return node;
}

uint32_t spw_node_word(struct spw_grammar *g, const char *text)
{
    return spw_node_text(g, text, strlen(text));
}

void spw_token_bytes(char out[SPW_TOKEN_BYTES], int32_t id)
{
    out[0] = (char)SPW_TOKEN_BEGIN;
    for (unsigned i = 1; i < SPW_TOKEN_BYTES; i++)
        out[i] = (char)((uint32_t)id >> 8 * (i - 1));
}

uint32_t spw_node_token(struct spw_grammar *g, int32_t id)
{
    char bytes[SPW_TOKEN_BYTES];
    spw_token_bytes(bytes, id);
    return spw_node_text(g, bytes, sizeof bytes);
}

/* ---- characters ---- */

/* Numbers from `first` to `last` in bytes of 6 bits, n of them after the leading one, which has the
 * bits of `lead`. */
static uint32_t in_bytes(struct spw_grammar *g, uint32_t first, uint32_t last, unsigned n,
                         unsigned lead)
{
    const unsigned shift = 6 * n;
    const uint32_t mask = (1u << shift) - 1;
    uint32_t a = first >> shift, b = last >> shift, parts[3], n_parts = 0;
    if (!n)
        return range(g, lead | first, lead | last);
    if (a == b)
        return SPW_SEQUENCE(g, spw_node_byte(g, (unsigned char)(lead | a)),
                            in_bytes(g, first & mask, last & mask, n - 1, 0x80));
    if (first & mask) {
        parts[n_parts++] = SPW_SEQUENCE(g, spw_node_byte(g, (unsigned char)(lead | a)),
                                        in_bytes(g, first & mask, mask, n - 1, 0x80));
        a++;
    }
    if ((last & mask) != mask) {
        parts[n_parts++] = SPW_SEQUENCE(g, spw_node_byte(g, (unsigned char)(lead | b)),
                                        in_bytes(g, 0, last & mask, n - 1, 0x80));
        b--;
    }
    if (a <= b)
        parts[n_parts++] =
            SPW_SEQUENCE(g, range(g, lead | a, lead | b), in_bytes(g, 0, mask, n - 1, 0x80));
    return spw_node_list(g, SPW_NODE_CHOICE, parts, n_parts);
}

/* Characters with UTF-8 of equal length; the surrogates are none. */
static const struct {
    uint32_t first, last;
    unsigned n, lead;
} lengths[] = {{0, 0x7F, 0, 0},
               {0x80, 0x7FF, 1, 0xC0},
               {0x800, 0xD7FF, 2, 0xE0},
               {0xE000, 0xFFFF, 2, 0xE0},
               {0x10000, 0x10FFFF, 3, 0xF0}};

static bool has(const struct spw_char_range *ranges, size_t n, uint32_t c)
{
    for (size_t i = 0; i < n; i++)
        if (ranges[i].first <= c && c <= ranges[i].last)
            return true;
    return false;
}

const struct spw_char_range spw_plain_chars[SPW_N_PLAIN] = {{0x20, '"' - 1},
                                                            {'"' + 1, '<' - 1},
                                                            {'<' + 1, '\\' - 1},
                                                            {'\\' + 1, 0x2027},
                                                            {0x202A, 0x10FFFF}};

bool spw_char_is_plain(uint32_t c)
{
    return has(spw_plain_chars, SPW_N_PLAIN, c);
}

/* Whether the ranges have every plain character. */
static bool has_plain(const struct spw_char_range *ranges, size_t n)
{
    size_t n_in = 0;
    for (size_t k = 0; k < SPW_N_PLAIN; k++)
        for (size_t i = 0; i < n; i++)
            n_in += ranges[i].first <= spw_plain_chars[k].first &&
                    spw_plain_chars[k].last <= ranges[i].last;
    return n_in == SPW_N_PLAIN;
}

uint32_t spw_node_chars(struct spw_grammar *g, const struct spw_char_range *ranges, size_t n)
{
    enum { N_LENGTHS = sizeof lengths / sizeof *lengths };
    uint32_t *parts = spw_alloc((n * N_LENGTHS + 1) * sizeof *parts);
    struct spw_byte_set single = {0};
    size_t n_parts = 0;
    if (!parts) {
        g->rc = g->rc ? g->rc : -ENOMEM;
        return 0;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < N_LENGTHS; k++) {
            const uint32_t first = spw_max_u32(ranges[i].first, lengths[k].first);
            const uint32_t last =
                ranges[i].last < lengths[k].last ? ranges[i].last : lengths[k].last;
            if (first <= last && !lengths[k].n)
                add_bytes(&single, first, last);
            else if (first <= last)
                parts[n_parts++] = in_bytes(g, first, last, lengths[k].n, lengths[k].lead);
        }
    if (single.bits[0] | single.bits[1])
        parts[n_parts++] = spw_node_set(g, &single);
    const uint32_t node = spw_node_list(g, SPW_NODE_CHOICE, parts, n_parts);
    if (!g->rc)
        g->nodes[node].is_plain = has_plain(ranges, n);
    spw_free(parts);
    return node;
}

uint32_t spw_node_json_chars(struct spw_grammar *g, const struct spw_char_range *ranges, size_t n)
{
    static const struct spw_char_range plain[] = {
        {0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0x10FFFF}};
    static const char escaped[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    enum { N_PLAIN = 3, N_ESCAPED = sizeof names - 1 };
    struct spw_byte_set escapes = {0};
    struct spw_char_range *parts = spw_alloc((n * N_PLAIN + 1) * sizeof *parts);
    size_t n_parts = 0;
    if (g->is_bare) {
        spw_free(parts);
        return spw_node_chars(g, ranges, n);
    }
    if (!parts) {
        g->rc = g->rc ? g->rc : -ENOMEM;
        return 0;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < N_PLAIN; k++) {
            const struct spw_char_range both = {spw_max_u32(ranges[i].first, plain[k].first),
                                                ranges[i].last < plain[k].last ? ranges[i].last
                                                                               : plain[k].last};
            if (both.first <= both.last)
                parts[n_parts++] = both;
        }
    const uint32_t node = spw_node_chars(g, parts, n_parts);
    spw_free(parts);
    for (size_t k = 0; k < N_ESCAPED; k++)
        if (has(ranges, n, (unsigned char)escaped[k]))
            add_bytes(&escapes, (unsigned char)names[k], (unsigned char)names[k]);
    if (!(escapes.bits[0] | escapes.bits[1]))
        return node;
    return SPW_CHOICE(g, node, SPW_SEQUENCE(g, spw_node_byte(g, '\\'), spw_node_set(g, &escapes)));
}
