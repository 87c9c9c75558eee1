/* See job.h. */
#include "tools/command/job/job.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

bool job_shard_parse(const char *text, struct job_shard *out)
{
    char index[20], n[20];
    int bytes = 0;
    if (sscanf(text, "%19[0-9]/%19[0-9]%n", index, n, &bytes) != 2 || text[bytes])
        return false;
    *out = (struct job_shard){strtoull(index, NULL, 10), strtoull(n, NULL, 10)};
    return out->index < out->n;
}

int job_shard_check(const struct cli_options *o, struct job_shard *out)
{
    if (!o->shard || job_shard_parse(o->shard, out))
        return 0;
    return cli_fail(CLI_REFUSED, "--shard: found '%s', expected I/N, from 0/N to N-1/N", o->shard);
}

int job_shard_has(const struct job_shard *s, const struct request *x)
{
    char number[24];
    if (!s->n)
        return 1;
    char *id = x->id ? spw_json_dump(x->id, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    if (x->id && !id)
        return -ENOMEM;
    snprintf(number, sizeof number, "%" PRIu64, x->number);
    const char *name = id ? id : number;
    uint64_t hash = XXH3_64bits(name, strlen(name));
    spw_free(id);
    return hash % s->n == s->index;
}
