/* See job.h. */
#include "tools/command/job/job.h"

#include "tools/command/job/store/store.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

struct part {
    const char *output;
    struct job_store *store;
    struct job_shard shard;
    struct stat file;
    uint64_t n_done, n_failed, n_missing;
};

struct status {
    const struct cli_options *o;
    struct part *parts; /* owned, [n_parts] */
    size_t n_parts;
    bool knows_missing; /* the input was no pipe */
    bool is_damaged;
};

/* Two names may mean one file. */
static int check_apart(const struct status *s, struct part *p)
{
    if (stat(p->output, &p->file))
        return cli_fail(CLI_FAILED, "%s: %s", p->output, strerror(errno));
    for (const struct part *other = s->parts; other < p; other++)
        if (spw_is_same_file(&other->file, &p->file))
            return cli_fail(CLI_REFUSED, "%s and %s are one file, expected two", other->output,
                            p->output);
    return 0;
}

static int open_part(struct status *s, struct part *p, const char *output)
{
    p->output = output;
    int code = job_store_look(&p->store, output, &s->is_damaged);
    if (!code)
        code = check_apart(s, p);
    if (code)
        return code;
    const json_t *shard = json_object_get(job_store_identity(p->store), "--shard");
    if (json_is_string(shard))
        job_shard_parse(json_string_value(shard), &p->shard);
    struct job_totals totals = job_store_totals(p->store);
    p->n_done = totals.n_done;
    p->n_failed = totals.n_failed;
    uint64_t n;
    s->knows_missing &= job_store_expected(p->store, &n);
    p->n_missing = spw_sub_u64(n, p->n_done + p->n_failed);
    return 0;
}

/* Shards of one job of which no output was named. */
static uint64_t count_absent(const struct status *s)
{
    uint64_t n = s->parts[0].shard.n, n_absent = 0;
    for (uint64_t i = 0; i < n; i++) {
        bool any = false;
        for (size_t k = 0; k < s->n_parts; k++)
            any |= s->parts[k].shard.n == n && s->parts[k].shard.index == i;
        n_absent += !any;
    }
    return n_absent;
}

static void show(const struct status *s, const char *name, const struct part *p)
{
    printf("%s: %" PRIu64 " done, %" PRIu64 " failed, ", name, p->n_done, p->n_failed);
    if (s->knows_missing)
        printf("%" PRIu64 " missing\n", p->n_missing);
    else
        printf("the input was stdin, so it is not known how many are missing\n");
}

int job_status(const struct cli_options *o)
{
    struct status s = {.o = o, .n_parts = 1 + o->paths.n, .knows_missing = true};
    struct part all = {0};
    int code = 0;
    s.parts = spw_alloc_zero(s.n_parts, sizeof *s.parts);
    if (!s.parts)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t i = 0; i < s.n_parts && !code; i++) {
        struct part *p = &s.parts[i];
        code = open_part(&s, p, i ? o->paths.items[i - 1] : o->operand);
        all.n_done += p->n_done;
        all.n_failed += p->n_failed;
        all.n_missing += p->n_missing;
    }
    for (size_t i = 0; i < s.n_parts && !code; i++)
        show(&s, s.parts[i].output, &s.parts[i]);
    uint64_t n_absent = code ? 0 : count_absent(&s);
    if (!code && s.n_parts > 1)
        show(&s, "all", &all);
    if (n_absent)
        printf("%" PRIu64 " of %" PRIu64 " shards have no output here\n", n_absent,
               s.parts[0].shard.n);
    if (!code && (s.is_damaged || all.n_failed || all.n_missing || n_absent || !s.knows_missing))
        code = CLI_FAILED;
    for (size_t i = 0; i < s.n_parts; i++)
        job_store_close(s.parts[i].store, code);
    spw_free(s.parts);
    return code;
}
