/* One sequence in one or two caches: see sequence.h. */
#include "runtime/step/sequence.h"

int spw_sequence_open(struct spw_sequence *s, struct spw_kv *aged, struct spw_kv *near)
{
    *s = (struct spw_sequence){0};
    SPW_TRY(spw_kv_seq_open(&s->aged, aged));
    s->near = s->aged;
    if (!near)
        return 0;
    int rc = spw_kv_seq_open(&s->near, near);
    if (rc) {
        spw_kv_seq_close(s->aged);
        *s = (struct spw_sequence){0};
    }
    return rc;
}

void spw_sequence_close(struct spw_sequence *s)
{
    if (s->near != s->aged)
        spw_kv_seq_close(s->near);
    spw_kv_seq_close(s->aged);
    *s = (struct spw_sequence){0};
}

void spw_sequence_fork(struct spw_sequence *to, const struct spw_sequence *from)
{
    spw_kv_seq_fork(to->aged, from->aged);
    if (from->near != from->aged)
        spw_kv_seq_fork(to->near, from->near);
}

bool spw_sequence_can_truncate(const struct spw_sequence *s, const struct spw_residency *r,
                               uint64_t n)
{
    return spw_kv_can_truncate(s->near, r, n);
}

uint64_t spw_sequence_reach(const struct spw_sequence *s, const struct spw_residency *r, uint64_t n)
{
    return spw_kv_reach(s->near, r, n);
}

void spw_sequence_truncate(struct spw_sequence *s, const struct spw_residency *r, uint64_t n)
{
    if (s->near != s->aged)
        spw_kv_truncate(s->aged, spw_waterline_old_end(r, n) * (uint64_t)SPW_TILE_TOKENS);
    spw_kv_truncate(s->near, n);
}
