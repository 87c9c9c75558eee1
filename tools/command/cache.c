/* `spillway cache`: lists, verifies and shrinks a prefix cache. */
#include "tools/command/limits.h"

#include <stdlib.h>
#include <string.h>

static const char *format_fingerprint(char buffer[17], const struct spw_store_entry *e)
{
    for (int i = 0; i < 8; i++)
        snprintf(buffer + 2 * i, 3, "%02x", e->fingerprint[i]);
    return buffer;
}

static json_t *entry_json(const struct spw_store_entry *e)
{
    char fingerprint[17];
    const struct cli_field file[] = {
        {"pack", CLI_JSON(e->name)},
        CLI_FIELD(e, bytes),
        CLI_FIELD(e, used_at),
        {"damaged", CLI_OR_NULL(e->error, CLI_JSON(e->reason.text))},
    };
    json_t *o = CLI_OBJECT(file);
    if (e->error)
        return o;
    const struct cli_field content[] = {
        CLI_FIELD(e, first_token),
        {"tokens", CLI_JSON(e->n_tokens)},
        {"tiles", CLI_JSON(e->n_tiles)},
        {"records", CLI_JSON(e->n_records)},
        CLI_FIELD(e, checkpoint),
        {"fingerprint", CLI_JSON(format_fingerprint(fingerprint, e))},
    };
    CLI_ADD(&o, content);
    return o;
}

static int show(const struct cli_options *o, const struct spw_store_entry *entries, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        cli_json_append(&list, entry_json(&entries[i]));
    return cli_show(o, list);
}

static int print_pruned(const struct spw_store_pruned *p)
{
    const struct cli_field fields[] = {
        {"removed", CLI_JSON(p->n_packs)},
        {"removed_bytes", CLI_JSON(p->bytes)},
        {"left", CLI_JSON(p->n_left)},
        CLI_FIELD(p, left_bytes),
    };
    return cli_print_json(CLI_OBJECT(fields));
}

static void print_totals(const struct spw_store_entry *entries, size_t n)
{
    char bytes[32];
    uint64_t total = 0, n_tokens = 0, n_tiles = 0;
    for (size_t i = 0; i < n; i++) {
        total += entries[i].bytes;
        n_tokens += entries[i].n_tokens;
        n_tiles += entries[i].n_tiles;
    }
    printf("%zu pack%s, %llu tile%s, %llu token%s, %s\n", n, cli_plural(n),
           (unsigned long long)n_tiles, cli_plural(n_tiles), (unsigned long long)n_tokens,
           cli_plural(n_tokens), cli_format_bytes(bytes, total));
}

static int list(const struct cli_options *o)
{
    struct spw_store_entry *entries;
    struct spw_error err = {0};
    size_t n;
    int rc = spw_store_list(&entries, &n, o->operand, false, &err);
    if (rc)
        return cli_fail_error(rc, &err, rc != -EIO && rc != -ENOMEM);
    int code = show(o, entries, n);
    if (!o->json)
        print_totals(entries, n);
    spw_free(entries);
    return code;
}

/* Prints a line for every damaged pack. Returns 1 if there is any. */
static int verify(const struct cli_options *o)
{
    struct spw_store_entry *entries;
    struct spw_error err = {0};
    size_t n, n_bad = 0;
    char bytes[32];
    uint64_t total = 0;
    int rc = spw_store_list(&entries, &n, o->operand, true, &err);
    if (rc)
        return cli_fail_error(rc, &err, rc != -EIO && rc != -ENOMEM);
    int code = o->json ? show(o, entries, n) : 0;
    for (size_t i = 0; i < n; i++) {
        total += entries[i].bytes;
        n_bad += entries[i].error != 0;
        if (entries[i].error && !o->json)
            printf("%s\n", entries[i].reason.text);
    }
    if (!o->json)
        printf("%zu pack%s, %s read, %zu damaged\n", n, cli_plural(n),
               cli_format_bytes(bytes, total), n_bad);
    spw_free(entries);
    return code ? code : n_bad ? CLI_FAILED : CLI_DONE;
}

static int prune(const struct cli_options *o)
{
    struct spw_store_pruned p;
    struct spw_error err = {0};
    char went[32], left[32];
    if (!cli_given(o, "size"))
        return cli_fail(
            CLI_REFUSED,
            "cache prune: found no --size, expected the largest size that stays; 0 removes all");
    int rc = spw_store_prune(&p, o->operand, o->size, &err);
    if (rc)
        return cli_fail_error(rc, &err, rc != -EIO && rc != -ENOMEM);
    if (o->json)
        return print_pruned(&p);
    printf("%llu pack%s removed, %s; %llu left, %s\n", (unsigned long long)p.n_packs,
           cli_plural(p.n_packs), cli_format_bytes(went, p.bytes), (unsigned long long)p.n_left,
           cli_format_bytes(left, p.left_bytes));
    if (p.left_bytes > o->size)
        cli_fail(0, "more than --size is left: other processes use these packs");
    return 0;
}

int cli_cache(const struct cli_options *o)
{
    static const struct {
        const char *verb;
        int (*run)(const struct cli_options *o);
    } verbs[] = {{"ls", list}, {"verify", verify}, {"prune", prune}};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        if (strcmp(o->verb, verbs[i].verb) != 0)
            continue;
        if (cli_given(o, "size") && verbs[i].run != prune)
            return cli_fail(CLI_REFUSED, "--size: found with %s, expected with prune", o->verb);
        return verbs[i].run(o);
    }
    return cli_fail(CLI_REFUSED, "cache: found '%s', expected ls, verify or prune", o->verb);
}
