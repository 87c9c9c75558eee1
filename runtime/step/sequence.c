/* One sequence in one or two caches: see sequence.h. */
#include "runtime/step/sequence.h"

int spw_sequence_open(struct spw_sequence *s, struct spw_kv *kv, struct spw_kv *exact)
{
    *s = (struct spw_sequence){0};
    SPW_TRY(spw_kv_seq_open(&s->kv, kv));
    s->exact = s->kv;
    if (!exact)
        return 0;
    int rc = spw_kv_seq_open(&s->exact, exact);
    if (rc) {
        spw_kv_seq_close(s->kv);
        *s = (struct spw_sequence){0};
    }
    return rc;
}

void spw_sequence_close(struct spw_sequence *s)
{
    if (s->exact != s->kv)
        spw_kv_seq_close(s->exact);
    spw_kv_seq_close(s->kv);
    *s = (struct spw_sequence){0};
}

void spw_sequence_fork(struct spw_sequence *to, const struct spw_sequence *from)
{
    spw_kv_seq_fork(to->kv, from->kv);
    if (from->exact != from->kv)
        spw_kv_seq_fork(to->exact, from->exact);
}

bool spw_sequence_can_truncate(const struct spw_sequence *s, const struct spw_residency *r,
                               uint64_t n)
{
    return spw_kv_can_truncate(s->exact, r, n);
}

uint64_t spw_sequence_reach(const struct spw_sequence *s, const struct spw_residency *r, uint64_t n)
{
    return spw_kv_reach(s->exact, r, n);
}

void spw_sequence_truncate(struct spw_sequence *s, const struct spw_residency *r, uint64_t n)
{
    if (s->exact != s->kv)
        spw_kv_truncate(s->kv, spw_waterline_old_end(r, n) * (uint64_t)SPW_TILE_TOKENS);
    spw_kv_truncate(s->exact, n);
}
