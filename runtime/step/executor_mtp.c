/* The MTP layer (multi-token prediction), which predicts one token more: its input.
 *
 *   position      p - 1            p
 *   token         x[p-1]           x[p]
 *   model         h[p-1]           .           after the last norm
 *   MTP layer     .                [norm(embedding of x[p]) | norm(h[p-1])]: predicts x[p+1]
 *
 * In a step of the model the layer only stores its keys and values, for all tokens. In a step of
 * drafts (spw_executor_draft) the newest tokens pass the whole layer, and the head gives the first
 * draft. For each further draft, the draft before it passes the layer; in place of h comes the row
 * that the last norm has made of the MTP layer's own output.
 *
 * So the input needs the row after the last norm of the token before. The newest rows of each
 * session are kept on the device for that: the row of position p is at place p % SPW_MTP_KEPT.
 * Where the row before is not known, zeros stand for it: before the first token, and where a
 * session began with tiles of a file. Then drafts are worse, but no result changes: drafts may be
 * any tokens. */
#include "runtime/step/executor.h"

static uint64_t row_bytes(const struct spw_executor *x)
{
    return x->plan->hidden_row_bytes;
}

/* The row of zeros, behind the kept rows of all sessions. */
static uint8_t *zeros(const struct spw_executor *x)
{
    return x->lane->device_arena + x->plan->device.mtp_kept +
           (uint64_t)x->plan->info.sessions * SPW_MTP_KEPT * row_bytes(x);
}

/* The place of the kept row of a position. */
static uint8_t *kept(const struct spw_executor *x, const struct spw_sequence *seq,
                     uint64_t position)
{
    return x->lane->device_arena + x->plan->device.mtp_kept +
           ((uint64_t)seq->place * SPW_MTP_KEPT + position % SPW_MTP_KEPT) * row_bytes(x);
}

static int copy(const struct spw_executor *x, void *to, const void *from, uint64_t rows)
{
    return spw_lane_copy(x->lane, to, from, rows * row_bytes(x), SPW_LINK_DEVICE_TO_DEVICE,
                         x->lane->compute);
}

/* Copies the rows of positions [from, from + n), n at most SPW_MTP_KEPT: with `keep` from `rows` to
 * their places, else from there to `rows`. */
static int move_kept(const struct spw_executor *x, const struct spw_sequence *seq, uint64_t from,
                     uint64_t n, uint8_t *rows, bool keep)
{
    for (uint64_t run; n; n -= run, from += run, rows += run * row_bytes(x)) {
        uint8_t *place = kept(x, seq, from);
        run = spw_min_u64(n, SPW_MTP_KEPT - from % SPW_MTP_KEPT);
        SPW_TRY(keep ? copy(x, place, rows, run) : copy(x, rows, place, run));
    }
    return 0;
}

/* In a step of the model: fills `rows` with the rows of the tokens before those of a part, whose
 * hidden states are h, and keeps the newest rows of the part. `rows` has place for one row more.
 */
static int shift_part(struct spw_executor *x, const struct spw_part *part, const void *h,
                      uint8_t *rows)
{
    const struct spw_sequence *seq = x->step->items[part->span].seq;
    const uint64_t n = part->to - part->from, n_kept = spw_min_u64(n, SPW_MTP_KEPT);
    const bool known = part->from > x->step->spans[part->span].from ||
                       (part->from && spw_sequence_keeps(seq, part->from - 1, part->from));
    SPW_TRY(copy(x, rows, known ? kept(x, seq, part->from - 1) : zeros(x), 1));
    SPW_TRY(spw_forward_final_norm(&x->forward, false, h, rows + row_bytes(x), n));
    return move_kept(x, seq, part->to - n_kept, n_kept, rows + (n + 1 - n_kept) * row_bytes(x),
                     true);
}

int spw_executor_join(struct spw_executor *x, const struct spw_layer_weights *w, uint32_t k,
                      void **h)
{
    const struct spw_cut *cut = &x->step->now->cut;
    const struct spw_chunk *chunk = &cut->chunks[k];
    uint8_t *rows = x->lane->device_arena + x->plan->device.mtp_rows;
    void *joined = x->lane->device_arena + x->plan->device.mtp_joined;
    SPW_TRY(spw_hidden_embed(&x->step->hidden, k, rows));
    SPW_TRY(spw_forward_join_embedding(&x->forward, rows, joined, chunk->rows));
    for (uint32_t i = chunk->first_part; i < chunk->first_part + chunk->n_parts; i++) {
        const struct spw_part *part = &cut->parts[i];
        const uint64_t at = (part->row - chunk->row) * row_bytes(x);
        SPW_TRY(x->step->is_draft ? move_kept(x, x->step->items[part->span].seq, part->from - 1,
                                              part->to - part->from, rows + at, false)
                                  : shift_part(x, part, (const uint8_t *)*h + at, rows + at));
    }
    if (!x->step->is_draft)
        *h = rows;
    return spw_forward_join(&x->forward, w, rows, joined, *h, chunk->rows);
}

int spw_executor_keep(struct spw_executor *x, const struct spw_sequence *seq, uint64_t position,
                      size_t row)
{
    return copy(x, kept(x, seq, position),
                x->lane->device_arena + x->plan->device.rows + row * row_bytes(x), 1);
}

int spw_executor_begin_kept(struct spw_executor *x)
{
    if (!x->config->mtp)
        return 0;
    void *row = spw_alloc_zero(1, row_bytes(x));
    if (!row)
        return -ENOMEM;
    int rc = spw_lane_copy(x->lane, zeros(x), row, row_bytes(x), SPW_LINK_HOST_TO_DEVICE,
                           x->lane->compute);
    if (!rc)
        rc = spw_lane_stream_sync(x->lane, x->lane->compute);
    spw_free(row);
    return rc;
}
