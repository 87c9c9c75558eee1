/* The models: byte-pair merges in order of rank or of score, and whole-word lookup. (The third one:
 * tokenizer_unigram.c.)
 *
 * BPE: every character is a symbol in a doubly linked list; a heap holds the merges that are
 * possible now, by (rank, position). The best one is taken, its right symbol is swallowed, and the
 * two new neighbour pairs go into the heap. An entry whose symbols have changed since is stale and
 * dropped when it surfaces. n symbols give at most 3n entries: O(n log n), also when a whole book
 * is one word (SentencePiece models have no pre-tokenizer). */
#include "model/text/tokenizer/tokenizer_impl.h"

#include <string.h>

int spw_tok_ids_add(struct spw_tok_ids *ids, int32_t id)
{
    SPW_TRY(spw_grow(&ids->at, &ids->capacity, ids->n + 1, sizeof *ids->at));
    ids->at[ids->n++] = id;
    return 0;
}

int spw_tok_ids_add_piece(const struct spw_tokenizer *t, struct spw_tok_ids *ids, int32_t id)
{
    return spw_tok_ids_add(ids, (size_t)id < t->n_entries - t->n_hidden ? id : t->unk_id);
}

void spw_tok_model_work_free(struct spw_tok_model_work *w)
{
    spw_free(w->symbols);
    spw_free(w->heap);
    spw_free(w->paths);
    *w = (struct spw_tok_model_work){0};
}

/* ---- the heap: smallest order first ---- */

static void sift_down(struct spw_tok_candidate *heap, size_t n, size_t i)
{
    struct spw_tok_candidate c = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1].order < heap[child].order)
            child++;
        if (heap[child].order >= c.order)
            break;
        heap[i] = heap[child];
    }
    heap[i] = c;
}

static void heap_push(struct spw_tok_model_work *w, struct spw_tok_candidate c)
{
    size_t i = w->n_heap++;
    for (; i && w->heap[(i - 1) / 2].order > c.order; i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
}

static struct spw_tok_candidate heap_pop(struct spw_tok_model_work *w)
{
    struct spw_tok_candidate top = w->heap[0];
    w->heap[0] = w->heap[--w->n_heap];
    if (w->n_heap)
        sift_down(w->heap, w->n_heap, 0);
    return top;
}

/* ---- symbols ---- */

static int symbol_add(struct spw_tok_model_work *w, int32_t id, size_t start)
{
    SPW_TRY(spw_grow(&w->symbols, &w->symbol_capacity, w->n_symbols + 1, sizeof *w->symbols));
    int32_t at = (int32_t)w->n_symbols++;
    w->symbols[at] = (struct spw_tok_symbol){
        .id = id, .previous = at - 1, .next = at + 1, .start = (uint32_t)start};
    return 0;
}

static int32_t char_id(const struct spw_tokenizer *t, const char *p, size_t len)
{
    const unsigned char *s = (const unsigned char *)p;
    if (len == 1)
        return t->char_ids[s[0]];
    if (len == 2)
        return t->char_ids[(s[0] & 0x1f) << 6 | (s[1] & 0x3f)];
    return spw_tok_map_find(t, &t->vocab, p, len);
}

/* 1: every byte of the character has a token of its own, and they are added. 0: not so. */
static int add_bytes(const struct spw_tokenizer *t, struct spw_tok_model_work *w, size_t start,
                     size_t len)
{
    const uint8_t *p = (const uint8_t *)w->text + start;
    for (size_t i = 0; i < len; i++)
        if (t->byte_ids[p[i]] < 0)
            return 0;
    for (size_t i = 0; i < len; i++)
        SPW_TRY(symbol_add(w, t->byte_ids[p[i]], start + i));
    return 1;
}

/* Characters to first symbols. An unknown character that byte fallback cannot spell becomes the unk
 * token, or vanishes when the model has none. The pending unk is written only before the next known
 * character (or the next unk when they are not fused): byte-fallback symbols overtake it. That is
 * what the package does. */
static int add_characters(const struct spw_tokenizer *t, struct spw_tok_model_work *w,
                          const char *text, size_t bytes)
{
    bool pending = false;
    size_t unknown = 0; /* where the pending one begins */
    w->n_symbols = 0;
    w->text = text;
    w->bytes = bytes;
    for (size_t i = 0, len; i < bytes; i += len) {
        len = spw_tok_utf8_len(text + i);
        int32_t id = char_id(t, text + i, len);
        if (id >= 0) {
            if (pending)
                SPW_TRY(symbol_add(w, t->unk_id, unknown));
            pending = false;
            SPW_TRY(symbol_add(w, id, i));
            continue;
        }
        const int added = t->byte_fallback ? add_bytes(t, w, i, len) : 0;
        SPW_TRY(added);
        if (added)
            continue;
        if (!t->has_unk)
            continue;
        if (t->unk_id < 0)
            return -ENODATA;
        if (pending && !t->fuse_unk)
            SPW_TRY(symbol_add(w, t->unk_id, unknown));
        unknown = pending && t->fuse_unk ? unknown : i;
        pending = true;
    }
    return pending ? symbol_add(w, t->unk_id, unknown) : 0;
}

/* The token whose text is that of two neighbours. */
static bool scored_candidate(const struct spw_tokenizer *t, const struct spw_tok_model_work *w,
                             int32_t at, int32_t next, struct spw_tok_candidate *c)
{
    const struct spw_tok_symbol *s = w->symbols;
    size_t after = (size_t)s[next].next, start = s[at].start;
    size_t end = after < w->n_symbols ? s[after].start : w->bytes;
    if (end <= start) /* unknown characters are not always in order */
        return false;
    int32_t id = spw_tok_map_find(t, &t->vocab, w->text + start, end - start);
    if (id < 0 || t->ranks[id] == UINT32_MAX)
        return false;
    *c = (struct spw_tok_candidate){.order = (uint64_t)t->ranks[id] << 32 | (uint32_t)at, .id = id};
    return true;
}

/* Looks up the merge of the symbol at `at` with its right neighbour. */
static bool candidate_at(const struct spw_tokenizer *t, const struct spw_tok_model_work *w,
                         int32_t at, struct spw_tok_candidate *c)
{
    int32_t next = w->symbols[at].next;
    if ((size_t)next >= w->n_symbols)
        return false;
    if (t->ranks)
        return scored_candidate(t, w, at, next, c);
    const struct spw_tok_merge *m = spw_tok_merge_slot(t, w->symbols[at].id, w->symbols[next].id);
    if (m->rank == UINT32_MAX)
        return false;
    *c = (struct spw_tok_candidate){.order = (uint64_t)m->rank << 32 | (uint32_t)at, .id = m->id};
    return true;
}

static int merge_all(const struct spw_tokenizer *t, struct spw_tok_model_work *w)
{
    struct spw_tok_symbol *s = w->symbols;
    struct spw_tok_candidate c;
    size_t n = 0; /* candidates */
    /* Every merge removes a symbol and adds at most two candidates. */
    SPW_TRY(spw_grow(&w->heap, &w->heap_capacity, 3 * w->n_symbols, sizeof *w->heap));
    w->n_heap = 0;
    for (size_t i = 0; i + 1 < w->n_symbols; i++)
        if (candidate_at(t, w, (int32_t)i, &c))
            w->heap[w->n_heap++] = c;
    for (size_t i = w->n_heap / 2; i-- > 0;)
        sift_down(w->heap, w->n_heap, i);

    while (w->n_heap) {
        struct spw_tok_candidate top = heap_pop(w), now;
        int32_t at = (int32_t)(uint32_t)top.order;
        SPW_TRY(spw_tok_work_goes_on(w, n++));
        if (s[at].id < 0 || !candidate_at(t, w, at, &now) || now.id != top.id)
            continue;
        int32_t right = s[at].next;
        s[at].id = top.id;
        s[at].next = s[right].next;
        s[right].id = -1;
        if ((size_t)s[at].next < w->n_symbols)
            s[s[at].next].previous = at;
        if (s[at].previous >= 0 && candidate_at(t, w, s[at].previous, &c))
            heap_push(w, c);
        if (candidate_at(t, w, at, &c))
            heap_push(w, c);
    }
    return 0;
}

/* The token of a symbol. Unknown text may be one that the model does not make. */
static int32_t named_symbol(const struct spw_tokenizer *t, const struct spw_tok_model_work *w,
                            size_t i)
{
    const struct spw_tok_symbol *s = &w->symbols[i];
    const size_t next = (size_t)s->next, end = next < w->n_symbols ? s[next - i].start : w->bytes;
    if (s->id != t->unk_id || !t->named.n || end <= s->start)
        return s->id;
    const int32_t id = spw_tok_map_find(t, &t->named, w->text + s->start, end - s->start);
    return id < 0 ? t->unk_id : id;
}

static int bpe_encode(const struct spw_tokenizer *t, struct spw_tok_model_work *w, const char *text,
                      size_t bytes, struct spw_tok_ids *ids)
{
    if (t->ignore_merges) {
        int32_t id = spw_tok_map_find(t, &t->vocab, text, bytes);
        if (id >= 0)
            return spw_tok_ids_add(ids, id);
    }
    SPW_TRY(add_characters(t, w, text, bytes));
    if (w->n_symbols > 1)
        SPW_TRY(merge_all(t, w));
    for (size_t i = 0; i < w->n_symbols; i++)
        if (w->symbols[i].id >= 0)
            SPW_TRY(spw_tok_ids_add_piece(t, ids, named_symbol(t, w, i)));
    return 0;
}

int spw_tok_model_encode(const struct spw_tokenizer *t, struct spw_tok_model_work *w,
                         const char *text, size_t bytes, struct spw_tok_ids *ids)
{
    if (t->model == SPW_TOK_BPE)
        return bpe_encode(t, w, text, bytes, ids);
    if (t->model == SPW_TOK_UNIGRAM)
        return spw_tok_unigram_encode(t, w, text, bytes, ids);
    int32_t id = spw_tok_map_find(t, &t->vocab, text, bytes);
    id = id < 0 ? t->unk_id : id;
    return id < 0 ? -ENODATA : spw_tok_ids_add(ids, id);
}
