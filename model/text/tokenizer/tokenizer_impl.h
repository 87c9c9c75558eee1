/* Inside the tokenizer: the pipeline as data, and the pieces its files share. Not for other
 * modules.
 *
 * tokenizer_json.c   tokenizer.json -> the structs below
 * tokenizer_gguf.c   the keys of a GGUF file -> the same
 * tokenizer_spm.c    a SentencePiece model: its pieces; tokenizer_pieces.c  these -> the structs
 * tokenizer_gguf_write.c  the structs -> the keys of a GGUF file
 * tokenizer_build.c  the tables, from either
 * tokenizer_vocab.c  strings, ids, merges, the search for added tokens
 * tokenizer_added.c  added tokens that other files of the folder name
 * tokenizer_pipeline.c  normalizer, pre_tokenizer, post_processor, decoder -> the structs
 * tokenizer_regex.c  patterns: Oniguruma's dialect on PCRE2, literal search
 * tokenizer_norm.c   normalizers: text -> text
 * tokenizer_pre.c    pre-tokenizers: pieces -> pieces
 * tokenizer_charsmap.c  the normalizer of SentencePiece files
 * tokenizer_bpe.c    models: piece -> ids; tokenizer_unigram.c  the one with scores
 * tokenizer_decode.c ids -> text, all at once or streaming
 * tokenizer.c        open, close, encode from end to end */
#ifndef SPW_MODEL_TEXT_TOKENIZER_TOKENIZER_IMPL_H
#define SPW_MODEL_TEXT_TOKENIZER_TOKENIZER_IMPL_H

#include "base/grow.h"
#include "model/text/tokenizer/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Ids index arrays, so a single wild id must not cost gigabytes. */
#define SPW_TOK_MAX_ID ((1 << 22) - 1)
#define SPW_TOK_MAX_BYTES ((size_t)INT32_MAX)
#define SPW_TOK_MAX_OPS 64

/* ---- growing bytes ---- */

struct spw_tok_buf {
    char *data; /* owned */
    size_t n, capacity;
    size_t limit; /* of n; 0: SPW_TOK_MAX_BYTES */
};

int spw_tok_buf_reserve(struct spw_tok_buf *b, size_t more); /* -ENOMEM, -EFBIG; -E2BIG: limit */
int spw_tok_buf_append(struct spw_tok_buf *b, const char *data, size_t n);
void spw_tok_buf_free(struct spw_tok_buf *b);

/* ---- UTF-8 ---- */

/* > 0: bytes of the valid character at p (*cp gets it). 0: a valid beginning cut off by the end.
 * < 0: minus the length of the longest invalid part, which stands for one U+FFFD. n > 0. */
int spw_tok_utf8(const char *p, size_t n, int32_t *cp);
/* How many bytes from p on are valid: n, or the offset of the first character that is not. */
size_t spw_tok_valid(const char *p, size_t n);
/* Bytes of the character that starts at p, in text known to be valid. */
static inline size_t spw_tok_utf8_len(const char *p)
{
    unsigned char c = (unsigned char)*p;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}
size_t spw_tok_utf8_put(int32_t cp, char out[4]);
bool spw_tok_is_space(int32_t cp); /* Unicode White_Space */
/* Behind the spaces that begin at `at`; before those that end there, not below `limit`. */
size_t spw_tok_skip_spaces(const char *p, size_t n, size_t at);
size_t spw_tok_skip_spaces_back(const char *p, size_t at, size_t limit);
bool spw_tok_is_word(int32_t cp); /* \w: Alphabetic, M, Nd, Pc, join controls */

/* ---- patterns ---- */

/* A literal (code == NULL) or a compiled regular expression. */
struct spw_tok_pattern {
    char *literal; /* owned; of a regular expression: its text */
    size_t literal_bytes;
    pcre2_code *code; /* owned */
};

/* One stretch of a text: a match of a pattern, or what lies between two of them. */
struct spw_tok_span {
    size_t start, end;
    bool match;
};

struct spw_tok_spans {
    struct spw_tok_span *at; /* owned */
    size_t n, capacity;
};

/* What one thread needs to run patterns; zero to begin with. */
struct spw_tok_matcher {
    pcre2_general_context *memory; /* borrowed: the tokenizer's */
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    struct spw_tok_spans spans;
    bool (*stopped)(void); /* as in struct spw_encoding */
};

/* -ECANCELED: the caller wants no more. */
static inline int spw_tok_go_on(const struct spw_tok_matcher *m)
{
    return m->stopped && m->stopped() ? -ECANCELED : 0;
}

int spw_tok_pattern_literal(struct spw_tok_pattern *p, const char *text, size_t bytes);
/* `where` is "file: key" for the error text. */
int spw_tok_pattern_regex(struct spw_tok_pattern *p, pcre2_general_context *memory,
                          const char *regex, const char *where, struct spw_error *err);
void spw_tok_pattern_free(struct spw_tok_pattern *p);
pcre2_general_context *spw_tok_regex_memory(void);
/* Covers the text with spans, matches and gaps alternating as they come, into m->spans. Empty
 * matches count (but none right after a match). -EOVERFLOW: the match limit was reached. */
int spw_tok_find(const struct spw_tok_pattern *p, struct spw_tok_matcher *m, const char *text,
                 size_t bytes);
void spw_tok_matcher_free(struct spw_tok_matcher *m);

/* ---- steps ---- */

enum spw_tok_kind {
    /* of a normalizer */
    SPW_TOK_NFC,
    SPW_TOK_NFD,
    SPW_TOK_NFKC,
    SPW_TOK_NFKD,
    SPW_TOK_PREPEND,
    SPW_TOK_REPLACE, /* of a decoder, too */
    SPW_TOK_LOWERCASE,
    SPW_TOK_STRIP,
    SPW_TOK_CHARSMAP, /* `content`: as spw_tok_charsmap_check wants it */
    /* of a pre-tokenizer */
    SPW_TOK_PRE_PREFIX_SPACE, /* rewrite: a leading space where there is none */
    SPW_TOK_PRE_BYTES,        /* rewrite: each byte as its GPT-2 character */
    SPW_TOK_PRE_METASPACE,    /* rewrite: spaces as `content`, prepended per scheme */
    SPW_TOK_PRE_SPLIT,        /* split on a pattern */
    /* of a decoder */
    SPW_TOK_DEC_JOIN, /* no decoder at all: tokens with spaces between */
    SPW_TOK_DEC_BYTE_LEVEL,
    SPW_TOK_DEC_BYTE_FALLBACK,
    SPW_TOK_DEC_FUSE,
    SPW_TOK_DEC_STRIP,
    SPW_TOK_DEC_TRIM, /* no white space at the ends */
    SPW_TOK_DEC_METASPACE,
};

enum spw_tok_behavior {
    SPW_TOK_ISOLATED,
    SPW_TOK_REMOVED,
    SPW_TOK_MERGED_WITH_PREVIOUS,
    SPW_TOK_MERGED_WITH_NEXT,
    SPW_TOK_CONTIGUOUS,
};

enum spw_tok_scheme {
    SPW_TOK_SCHEME_ALWAYS,
    SPW_TOK_SCHEME_FIRST,
    SPW_TOK_SCHEME_NEVER,
};

struct spw_tok_step {
    enum spw_tok_kind kind;
    struct spw_tok_pattern pattern; /* REPLACE, SPLIT */
    char *content;                  /* owned: PREPEND, REPLACE; one character: METASPACE, STRIP;
                                     CHARSMAP: its bytes */
    size_t content_bytes;
    enum spw_tok_behavior behavior; /* SPLIT */
    bool invert;                    /* the same */
    enum spw_tok_scheme scheme;     /* METASPACE; of a decoder: the first token's space vanishes */
    bool left, right;               /* STRIP of a normalizer */
    bool always;                    /* PREPEND: also where nothing is left of a text */
    bool by_character;              /* BYTE_FALLBACK: bad bytes spoil no characters beside them */
    bool longest;                   /* CHARSMAP: as SentencePiece looks for keys */
    size_t start, stop;             /* STRIP of a decoder, in characters */
};

struct spw_tok_steps {
    struct spw_tok_step at[SPW_TOK_MAX_OPS];
    size_t n;
};

/* ---- normalizers ---- */

struct spw_tokenizer;

/* Replacements may double a text again and again. So a normal form, and what is made on the way to
 * it, has at most so many bytes for `bytes` of text: what real texts need, many times. */
static inline size_t spw_tok_normal_limit(size_t bytes)
{
    return spw_min_u64(16 * (uint64_t)bytes + (1u << 20), 4 * (uint64_t)bytes + (64u << 20));
}
/* Appends the normal form of text to out. *at_start becomes false when the beginning of the text
 * was cut away. -E2BIG: out->limit. */
int spw_tok_normalize(const struct spw_tokenizer *t, struct spw_tok_matcher *m, const char *text,
                      size_t bytes, struct spw_tok_buf *out, bool *at_start);
/* Whether these are the bytes of a map of characters: see tokenizer_charsmap.c. */
bool spw_tok_charsmap_check(const char *map, size_t bytes);
int spw_tok_charsmap_apply(const struct spw_tok_step *norm, const char *text, size_t bytes,
                           struct spw_tok_buf *out);

/* ---- pre-tokenizers ---- */

/* A text in work: its bytes, and the stretches of them that are still text (id < 0) or already an
 * added token. Never an empty stretch. */
struct spw_tok_piece {
    size_t start, end;
    int32_t id;
    bool at_start; /* begins where the caller's text begins */
};

struct spw_tok_text {
    struct spw_tok_buf buf;
    struct spw_tok_piece *pieces; /* owned */
    size_t n, capacity;
};

int spw_tok_text_add(struct spw_tok_text *x, size_t start, size_t end, int32_t id, bool at_start);
void spw_tok_text_free(struct spw_tok_text *x);
int spw_tok_pre_apply(const struct spw_tokenizer *t, struct spw_tok_matcher *m,
                      struct spw_tok_text *x);
/* GPT-2's printable stand-in of a byte, and back (-1: not one). */
int32_t spw_tok_byte_to_char(uint8_t byte);
int spw_tok_char_to_byte(int32_t cp);

/* ---- vocabulary ---- */

enum {
    SPW_TOK_IN_MODEL = 1, /* part of the model's vocabulary */
    SPW_TOK_IN_ADDED = 2,
    SPW_TOK_SPECIAL = 4,
    SPW_TOK_NAMED = 8,       /* the model does not make it of a text: see t->named */
    SPW_TOK_ADDED_SHIFT = 8, /* the bits above: index into t->added of an IN_ADDED entry */
};

/* A token by id; flags == 0: no such id. Text in `blob`, NUL-terminated. */
struct spw_tok_entry {
    uint32_t offset, bytes;
    uint32_t flags;
};

/* String -> id, open addressing; slots hold id + 1 and compare through the entries. */
struct spw_tok_map {
    uint32_t *slots; /* owned; NULL: the map is empty */
    uint32_t mask, n;
};

struct spw_tok_merge {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank; /* UINT32_MAX: an empty slot */
    int32_t id;
};

struct spw_tok_added {
    int32_t id;
    bool lstrip, rstrip, single_word, normalized;
    /* What decoding shows and a text is searched for: the content, or its normal form. */
    char *form; /* owned, or NULL: the content */
    size_t form_bytes;
};

/* Texts in their order, to find those that another text begins with. */
struct spw_tok_finder {
    struct spw_tok_form {
        const char *text; /* borrowed: the tokenizer's */
        uint32_t bytes;
        uint32_t index; /* of an added token in t->added; of a token of the model: its id */
    } * forms;          /* owned */
    size_t n, capacity;
    bool begins[256]; /* some form begins with this byte */
};

/* A search for the forms that a text begins with, the shortest first. Zeros: it begins. */
struct spw_tok_search {
    size_t low, high; /* forms that agree with the text so far */
    size_t bytes;     /* of the form that was found */
};

int32_t spw_tok_map_find(const struct spw_tokenizer *t, const struct spw_tok_map *map,
                         const char *text, size_t bytes); /* -1: absent */
/* In the vocabulary of the model or beside it; -1: there is no such token. */
int32_t spw_tok_known(const struct spw_tokenizer *t, const char *text, size_t bytes);
/* Enters the id of a token whose text the map does not have. */
int spw_tok_map_add(const struct spw_tokenizer *t, struct spw_tok_map *map, int32_t id);
int spw_tok_merges_init(struct spw_tokenizer *t, size_t n);
struct spw_tok_merge *spw_tok_merge_slot(const struct spw_tokenizer *t, int32_t left,
                                         int32_t right);
/* The added tokens that are `normalized`, or the others. -ENOMEM. */
int spw_tok_finder_of_added(struct spw_tok_finder *f, const struct spw_tokenizer *t,
                            bool normalized);
/* The tokens of the model. Call it when all tokens are known. -ENOMEM. */
int spw_tok_finder_of_model(struct spw_tok_finder *f, const struct spw_tokenizer *t);
/* The index of the next longer form that the text p [n] begins with; -1: there is none. */
int64_t spw_tok_find_next(const struct spw_tok_finder *f, const char *p, size_t n,
                          struct spw_tok_search *s);
/* Cuts every text piece of `in` at the added tokens of the finder; pieces go to `out`, which must
 * share its bytes. `plain` as in spw_encoding, of these bytes; NULL: no spans. */
int spw_tok_split_added(const struct spw_tokenizer *t, const struct spw_tok_finder *f,
                        const struct spw_encoding *plain, const struct spw_tok_text *in,
                        struct spw_tok_text *out);
/* Whether a special token of the finder is in one of the spans. */
bool spw_tok_has_special(const struct spw_tokenizer *t, const struct spw_tok_finder *f,
                         const struct spw_encoding *plain);

/* ---- models ---- */

enum spw_tok_model {
    SPW_TOK_BPE,
    SPW_TOK_WORD_LEVEL,
    SPW_TOK_UNIGRAM,
};

struct spw_tok_ids {
    int32_t *at; /* owned */
    size_t n, capacity;
};

struct spw_tok_symbol {
    int32_t id; /* < 0: swallowed by its left neighbour */
    int32_t previous, next;
    uint32_t start; /* in the text */
};

struct spw_tok_candidate {
    uint64_t order; /* rank << 32 | position */
    int32_t id;
};

/* The best tokens of a text up to some byte: see tokenizer_unigram.c. */
struct spw_tok_path {
    double score;   /* the sum of the tokens' scores */
    uint32_t begin; /* of the last token; UINT32_MAX: no tokens end here */
    int32_t id;     /* the last token */
};

/* The working memory of a model, kept from word to word. */
struct spw_tok_model_work {
    struct spw_tok_symbol *symbols; /* owned */
    size_t n_symbols, symbol_capacity;
    struct spw_tok_candidate *heap; /* owned */
    size_t n_heap, heap_capacity;
    struct spw_tok_path *paths; /* owned */
    size_t path_capacity;
    const char *text; /* borrowed: the word in work */
    size_t bytes;
    bool (*stopped)(void); /* as in struct spw_encoding */
};

/* Asks now and then, by the number of the step in a long word. -ECANCELED: the caller wants no
 * more. */
static inline int spw_tok_work_goes_on(const struct spw_tok_model_work *w, size_t step)
{
    enum { EVERY = 1 << 16 };
    return (step + 1) % EVERY == 0 && w->stopped && w->stopped() ? -ECANCELED : 0;
}
int spw_tok_ids_add(struct spw_tok_ids *ids, int32_t id);
/* A token of the model: a hidden one is unknown. */
int spw_tok_ids_add_piece(const struct spw_tokenizer *t, struct spw_tok_ids *ids, int32_t id);
/* Appends the ids of one piece. -ENODATA: an unknown character and no unk token. */
int spw_tok_model_encode(const struct spw_tokenizer *t, struct spw_tok_model_work *w,
                         const char *text, size_t bytes, struct spw_tok_ids *ids);
void spw_tok_model_work_free(struct spw_tok_model_work *w);
/* The same, of the model SPW_TOK_UNIGRAM. */
int spw_tok_unigram_encode(const struct spw_tokenizer *t, struct spw_tok_model_work *w,
                           const char *text, size_t bytes, struct spw_tok_ids *ids);

/* ---- the whole ---- */

struct spw_tokenizer {
    pcre2_general_context *regex_memory;

    struct spw_tok_buf blob;       /* all token texts */
    struct spw_tok_entry *entries; /* owned [n_entries] */
    size_t n_entries, entry_capacity;
    /* The last of the entries are pieces of SentencePiece that the model has no token for: they
     * become the unknown token. */
    size_t n_hidden;
    struct spw_tok_map vocab, added_map;
    /* Tokens that are no pieces of SentencePiece: unknown text that is one of them becomes it. */
    struct spw_tok_map named;
    bool marks_language; /* Marian: a piece of text that begins with ">>de<<" begins with a token */

    struct spw_tok_added *added; /* owned */
    size_t n_added, added_capacity;
    struct spw_tok_finder raw, normalized;

    struct spw_tok_steps norms, pres, decs;

    enum spw_tok_model model;
    struct spw_tok_merge *merges; /* owned [merge_mask + 1] */
    uint32_t merge_mask;
    /* SentencePiece has no merges: two symbols merge if a token has their text. Owned [n_entries],
     * in the order of scores, the best 0; UINT32_MAX: no symbols merge into this token. NULL: the
     * model has merges. */
    uint32_t *ranks;
    /* Of SPW_TOK_UNIGRAM: log probabilities, owned [score_capacity >= n_entries]; what an unknown
     * character costs; the tokens by text. */
    double *scores;
    size_t score_capacity;
    double unknown_score;
    bool sums_f32; /* as SentencePiece: the sum of the scores up to some byte is an f32 */
    struct spw_tok_finder pieces;
    bool byte_fallback, fuse_unk, ignore_merges, has_unk;
    int32_t unk_id; /* -1: the unk token is not in the vocabulary */
    int32_t byte_ids[256];
    int32_t char_ids[0x800]; /* ids of one-character tokens below U+0800, -1: none */

    struct spw_tok_ids prefix, suffix; /* what the post-processor puts around the text */
};

/* Opening: a tokenizer to fill (NULL: -ENOMEM), and its end: *out gets it if `rc` is 0, else it is
 * closed. `name` stands for the file in error texts. */
struct spw_tokenizer *spw_tok_new(struct spw_error *err);
int spw_tok_opened(struct spw_tokenizer **out, struct spw_tokenizer *t, int rc, const char *name,
                   struct spw_error *err);
/* `special` (special_tokens.h): of the folder; NULL: none. */
struct spw_special_tokens;
int spw_tok_load(struct spw_tokenizer *t, const char *json, size_t bytes,
                 const struct spw_special_tokens *special, const char *name, struct spw_error *err);

/* ---- building ----
 *
 * Fills the tables of a tokenizer, from any format: tokens of the model, then the characters, then
 * merges, the pipeline, added tokens, and the finish. Errors as in tokenizer.h. */

struct spw_tok_build {
    struct spw_tokenizer *t;
    const char *name; /* the file, for error texts */
    struct spw_error *err;
    const char *vocab_key, *merges_key; /* the same */
};

/* The next step, of this kind. `content` is copied; NULL: none. There is room. */
int spw_tok_build_step(struct spw_tok_steps *steps, enum spw_tok_kind kind, const char *content,
                       struct spw_tok_step **out);
/* Ids below n (at most SPW_TOK_MAX_ID + 1) exist, maybe without a token. */
int spw_tok_build_ids(const struct spw_tok_build *b, size_t n);
/* A token of the model. */
int spw_tok_build_token(const struct spw_tok_build *b, const char *token, size_t bytes, int32_t id);
/* A token that the model does not make of a text. */
int spw_tok_build_named(const struct spw_tok_build *b, const char *token, size_t bytes, int32_t id);
/* Call it when all tokens and byte_fallback are known. */
void spw_tok_build_characters(const struct spw_tok_build *b);
/* After spw_tok_merges_init. `joined`: the left half and the right half. */
int spw_tok_build_merge(const struct spw_tok_build *b, const char *joined, size_t bytes,
                        size_t left_bytes, uint32_t rank);
/* Instead of merges: the scores of the tokens that symbols merge into. The order changes. All
 * tokens are known. */
struct spw_tok_score {
    float score;
    int32_t id;
};
int spw_tok_build_ranks(const struct spw_tok_build *b, struct spw_tok_score *scores, size_t n);
/* The normalizer and the decoder of SentencePiece: U+2581 in the place of spaces. */
struct spw_tok_spaces {
    const char *charsmap; /* borrowed [charsmap_bytes]; checked */
    size_t charsmap_bytes;
    bool prefix; /* one space more in front of a text */
    bool strips; /* none else at the ends of a text, and one for several */
    bool trims;  /* an answer has no white space at its ends, and all characters of byte tokens;
                    else it loses the space of `prefix` */
};
int spw_tok_build_spaces(const struct spw_tok_build *b, const struct spw_tok_spaces *s);
/* The normalizers are known. `path`: of the token in the file. */
int spw_tok_build_added(const struct spw_tok_build *b, const struct spw_tok_added *added,
                        const char *content, size_t bytes, bool special, const char *path);
int spw_tok_build_finish(const struct spw_tok_build *b);

#endif
