/* The model Unigram: of all ways to cut a text into tokens, the one with the largest sum of scores
 * (Kudo, "Subword Regularization", 2018, section 3.2; found by Viterbi's algorithm).
 *
 *   paths[end]: the best way to cut the first `end` bytes, by its last token
 *
 * At each character every token that the rest begins with continues the best path to there, the
 * shortest token first; a path replaces another one only if it is better. A character that is not a
 * token continues as an unknown token. Unknown tokens that follow each other become one, and then
 * bytes, if the model has tokens for all of them. So does the tokenizers package. */
#include "model/text/tokenizer/tokenizer_impl.h"

#include <math.h>

/* Some tokens, such as bytes, are in a text only where nothing else is. */
static bool is_of_text(const struct spw_tokenizer *t, int32_t id)
{
    return t->scores[id] > -INFINITY;
}

static void continue_path(const struct spw_tokenizer *t, struct spw_tok_path *paths, size_t begin,
                          size_t end, double score, int32_t id)
{
    score += paths[begin].score;
    if (t->sums_f32)
        score = (double)(float)score;
    if (paths[end].begin == UINT32_MAX || score > paths[end].score)
        paths[end] = (struct spw_tok_path){score, (uint32_t)begin, id};
}

static int find_paths(const struct spw_tokenizer *t, const struct spw_tok_model_work *w,
                      const char *text, size_t bytes)
{
    struct spw_tok_path *paths = w->paths;
    size_t n = 0; /* characters */
    paths[0] = (struct spw_tok_path){0};
    for (size_t end = 1; end <= bytes; end++)
        paths[end].begin = UINT32_MAX;
    for (size_t i = 0, len; i < bytes; i += len) {
        struct spw_tok_search s = {0};
        bool is_token = false; /* the character alone */
        len = spw_tok_utf8_len(text + i);
        SPW_TRY(spw_tok_work_goes_on(w, n++));
        for (int64_t id; (id = spw_tok_find_next(&t->pieces, text + i, bytes - i, &s)) >= 0;) {
            if (!is_of_text(t, (int32_t)id))
                continue;
            continue_path(t, paths, i, i + s.bytes, t->scores[id], (int32_t)id);
            is_token |= s.bytes == len;
        }
        if (is_token)
            continue;
        if (!t->has_unk)
            return -ENODATA;
        continue_path(t, paths, i, i + len, t->unknown_score, t->unk_id);
    }
    return 0;
}

/* Turns the links of the best path around: each token then says where it ends. */
static void turn_path(struct spw_tok_path *paths, size_t bytes)
{
    int32_t id = -1;
    for (size_t at = bytes, end = bytes, begin;; end = at, at = begin) {
        const int32_t its = paths[at].id;
        begin = paths[at].begin;
        paths[at].begin = (uint32_t)end;
        paths[at].id = id;
        id = its;
        if (!at)
            return;
    }
}

/* A piece that is not one token: its bytes, or the unknown token. */
static int add_unknown(const struct spw_tokenizer *t, const char *text, size_t bytes,
                       struct spw_tok_ids *ids)
{
    int32_t id = spw_tok_map_find(t, &t->vocab, text, bytes);
    if (id >= 0 && !is_of_text(t, id))
        id = -1;
    bool has_bytes = t->byte_fallback && id < 0;
    for (size_t i = 0; i < bytes && has_bytes; i++)
        has_bytes = t->byte_ids[(uint8_t)text[i]] >= 0;
    for (size_t i = 0; i < bytes && has_bytes; i++)
        SPW_TRY(spw_tok_ids_add_piece(t, ids, t->byte_ids[(uint8_t)text[i]]));
    if (has_bytes)
        return 0;
    id = id < 0 ? spw_tok_map_find(t, &t->named, text, bytes) : id;
    return spw_tok_ids_add(ids, id < 0 ? t->unk_id : id);
}

int spw_tok_unigram_encode(const struct spw_tokenizer *t, struct spw_tok_model_work *w,
                           const char *text, size_t bytes, struct spw_tok_ids *ids)
{
    SPW_TRY(spw_grow(&w->paths, &w->path_capacity, bytes + 1, sizeof *w->paths));
    SPW_TRY(find_paths(t, w, text, bytes));
    turn_path(w->paths, bytes);
    for (size_t at = 0, end; at < bytes; at = end) {
        const int32_t id = w->paths[at].id;
        end = w->paths[at].begin;
        while (id == t->unk_id && end < bytes && w->paths[end].id == id)
            end = w->paths[end].begin;
        if (id == t->unk_id)
            SPW_TRY(add_unknown(t, text + at, end - at, ids));
        else
            SPW_TRY(spw_tok_ids_add_piece(t, ids, id));
    }
    return 0;
}
