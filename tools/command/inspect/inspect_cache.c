/* The cache policy as text and as JSON: see inspect_cache.h. Adjacent layers of one kind are shown
 * as one range. */
#include "tools/command/inspect/inspect_cache.h"

#include "quant/types.h"

enum { MOST_TIERS = 3 };

static size_t list_tiers(const struct spw_cache_policy *p, const char *out[MOST_TIERS])
{
    size_t n = 0;
    out[n++] = "device";
    if (p->host)
        out[n++] = "host";
    if (p->disk)
        out[n++] = "disk";
    return n;
}

/* The end of the range of equal layers that begins at `first`. */
static uint32_t run_end(const struct spw_model_config *c, uint32_t first)
{
    uint32_t end = first + 1;
    while (end < c->n_layers && c->layer_kinds[end] == c->layer_kinds[first])
        end++;
    return end;
}

/* ---- JSON ---- */

static json_t *tiers_json(const struct spw_cache_policy *p)
{
    const char *tiers[MOST_TIERS];
    size_t n = list_tiers(p, tiers);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        cli_json_append(&list, CLI_JSON(tiers[i]));
    return list;
}

static json_t *run_json(const struct spw_cache_policy *p, int kind, uint32_t first, uint32_t end)
{
    const struct spw_cache_layers *layers = &p->layers[kind];
    const struct cli_field fields[] = {
        {"first", CLI_JSON(first)},
        {"last", CLI_JSON(end - 1)},
        {"kind", CLI_JSON(spw_layer_kinds[kind].name)},
        {"window", CLI_OR_NULL(layers->window, CLI_JSON(layers->window))},
        {"kv_dtype", CLI_JSON(spw_dtype_name(p->kv))},
        {"tiers", tiers_json(p)},
        CLI_FIELD(layers, why),
    };
    return CLI_OBJECT(fields);
}

json_t *cli_cache_json(const struct spw_cache_policy *p, const struct spw_model_config *c)
{
    json_t *list = json_array();
    for (uint32_t i = 0, end; i < c->n_layers; i = end) {
        end = run_end(c, i);
        cli_json_append(&list, run_json(p, c->layer_kinds[i], i, end));
    }
    const char *asked = c->cache_implementation;
    const struct cli_field fields[] = {
        {"layers", list},
        {"kv_dtype_why", CLI_JSON(p->kv_why)},
        {"old_kv", CLI_JSON(spw_kv_precision_name(p->precision))},
        {"old_kv_why", CLI_JSON(p->precision_why)},
        {"residual_window", CLI_OR_NULL(p->precision, CLI_JSON(p->residual_tokens))},
        CLI_FIELD(p, tiers_why),
        {"asked", CLI_OR_NULL(*asked, CLI_JSON(asked))},
        {"asked_why", CLI_OR_NULL(*p->files_why, CLI_JSON(p->files_why))},
    };
    return CLI_OBJECT(fields);
}

/* ---- text ---- */

static void print_layers(const struct spw_cache_policy *p, const struct spw_model_config *c,
                         int kind)
{
    const char *comma = "";
    if (!p->layers[kind].n_layers)
        return;
    printf("            layers ");
    for (uint32_t i = 0, end; i < c->n_layers; i = end) {
        end = run_end(c, i);
        if (c->layer_kinds[i] != kind)
            continue;
        printf("%s%u", comma, i);
        if (end - i > 1)
            printf("-%u", end - 1);
        comma = ", ";
    }
    printf(": %s", spw_layer_kinds[kind].name);
    if (p->layers[kind].window)
        printf(" over %u tokens", p->layers[kind].window);
    printf(" (%s)\n", p->layers[kind].why);
}

void cli_cache_print(const struct spw_cache_policy *p, const struct spw_model_config *c)
{
    const char *tiers[MOST_TIERS];
    size_t n = list_tiers(p, tiers);
    printf("cache       %s in every layer (%s)\n", spw_dtype_name(p->kv), p->kv_why);
    if (p->precision)
        printf("            %s where older than %llu tokens, in full layers (%s)\n",
               spw_kv_precision_name(p->precision), (unsigned long long)p->residual_tokens,
               p->precision_why);
    printf("            on");
    for (size_t i = 0; i < n; i++)
        printf("%s %s", i ? "," : "", tiers[i]);
    printf(" (%s)\n", p->tiers_why);
    for (int kind = 0; kind < SPW_LAYER_KINDS; kind++)
        print_layers(p, c, kind);
    if (*p->files_why)
        printf("            %s\n", p->files_why);
}
