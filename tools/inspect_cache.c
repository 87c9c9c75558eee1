/* The cache policy as text and as JSON: see inspect_cache.h. Layers that follow each other and are
 * of one kind are shown as one range. */
#include "tools/inspect_cache.h"

static const char *const kind_names[] = {
    [SPW_LAYER_FULL] = "full",
    [SPW_LAYER_SLIDING] = "sliding",
};

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

/* One past the last layer of the run that begins at `first`. */
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
    for (size_t i = 0; i < n; i++) {
        if (json_array_append_new(list, json_string(tiers[i]))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *run_json(const struct spw_cache_policy *p, int kind, uint32_t first, uint32_t end)
{
    const struct spw_cache_layers *layers = &p->layers[kind];
    json_t *o = json_object();
    int failed = json_object_set_new(o, "first", cli_json_count(first));
    failed |= json_object_set_new(o, "last", cli_json_count(end - 1));
    failed |= json_object_set_new(o, "kind", json_string(kind_names[kind]));
    failed |= json_object_set_new(o, "window",
                                  layers->window ? cli_json_count(layers->window) : json_null());
    failed |= json_object_set_new(o, "kv_dtype", json_string(spw_dtype_name(p->kv)));
    failed |= json_object_set_new(o, "tiers", tiers_json(p));
    failed |= json_object_set_new(o, "why", json_string(layers->why));
    if (!failed)
        return o;
    json_decref(o);
    return NULL;
}

json_t *cli_cache_json(const struct spw_cache_policy *p, const struct spw_model_config *c)
{
    json_t *o = json_object(), *list = json_array();
    int failed = 0;
    for (uint32_t i = 0, end; i < c->n_layers; i = end) {
        end = run_end(c, i);
        failed |= json_array_append_new(list, run_json(p, c->layer_kinds[i], i, end));
    }
    failed |= json_object_set_new(o, "layers", list);
    failed |= json_object_set_new(o, "kv_dtype_why", json_string(p->kv_why));
    failed |= json_object_set_new(o, "old_kv", json_string(spw_kv_precision_name(p->precision)));
    failed |= json_object_set_new(o, "old_kv_why", json_string(p->precision_why));
    failed |= json_object_set_new(o, "residual_window",
                                  p->precision ? cli_json_count(p->residual_tokens) : json_null());
    failed |= json_object_set_new(o, "tiers_why", json_string(p->tiers_why));
    failed |= json_object_set_new(
        o, "asked", *c->cache_implementation ? json_string(c->cache_implementation) : json_null());
    failed |= json_object_set_new(o, "asked_why",
                                  *p->files_why ? json_string(p->files_why) : json_null());
    if (!failed)
        return o;
    json_decref(o);
    return NULL;
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
    printf(": %s", kind_names[kind]);
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
