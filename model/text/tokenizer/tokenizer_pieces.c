/* A tokenizer out of a SentencePiece model (tokenizer_spm.h): its normalizer and its pieces,
 * exactly as the library sentencepiece uses them, with the ids of a family. Where a folder has
 * tokenizer.json too, that file counts.
 *
 *   family      file                       ids of pieces                around a text
 *   marian      source.spm                 by text: vocab.json          A </s>
 *   m2m_100     sentencepiece.bpe.model    by text: vocab.json          __lang__ A </s>
 *   mbart       sentencepiece.bpe.model    number + 1, <s> <pad> </s>   A </s> lang
 *   mbart 50    the same                   <unk> first                  lang A </s>
 *   pegasus     spiece.model               number + 103                 A </s>
 *   t5          spiece.model               number                       A </s>
 *
 * A piece that vocab.json does not have is unknown: a hidden entry. A token of vocab.json that is
 * no piece (of target.spm, or a language) is a named one. target.spm is not read: it would only
 * encode answers. Languages have the ids behind the pieces; src_lang of tokenizer_config.json
 * chooses that of the source. */
#include "base/file.h"
#include "model/config/config_json.h"
#include "model/text/tokenizer/tokenizer_json.h"
#include "model/text/tokenizer/tokenizer_spm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MBART                                                                                      \
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "   \
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
#define MBART_50                                                                                   \
    MBART " af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL "  \
          "ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
#define M2M_100                                                                                    \
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu " \
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr "  \
    "ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr "   \
    "uk ur uz vi wo xh yi yo zh zu"
#define WMT_21 "en ha is ja cs ru zh de"
#define MBART_FIRST "<s> <pad> </s> <unk>"

struct family {
    const char *classes, *model_types; /* of transformers; which say that a folder is of it */
    const char *file;
    bool listed;          /* vocab.json has the ids */
    const char *first;    /* else the tokens with the first ids, in place of `n_first` pieces */
    size_t n_first;       /* */
    bool masks;           /* then <unk_2> and so on, which Pegasus was trained with */
    bool extra_ids;       /* behind the pieces: <extra_id_99> and so on */
    const char *codes;    /* of languages; their tokens stand behind the pieces */
    const char *form;     /* of a language's token */
    const char *language; /* of the source, if src_lang does not say it */
    bool before;          /* its token is in front of a text; else it is the last one */
    bool marks;           /* languages stand in the text: >>de<< */
    const char *special;  /* tokens that are special if nobody says so */
};

static const struct family families[] = {
    {.classes = "MarianTokenizer",
     .model_types = "marian",
     .file = "source.spm",
     .listed = true,
     .marks = true,
     .special = "</s> <unk> <pad>"},
    {.classes = "M2M100Tokenizer",
     .model_types = "m2m_100",
     .file = "sentencepiece.bpe.model",
     .listed = true,
     .codes = M2M_100,
     .form = "__%.*s__",
     .language = "en",
     .before = true,
     .special = "<s> </s> <unk> <pad>"},
    {.classes = "MBart50Tokenizer",
     .model_types = "",
     .file = "sentencepiece.bpe.model",
     .first = MBART_FIRST,
     .n_first = 3,
     .codes = MBART_50,
     .form = "%.*s",
     .language = "en_XX",
     .before = true,
     .special = "<mask>"},
    {.classes = "MBartTokenizer",
     .model_types = "mbart",
     .file = "sentencepiece.bpe.model",
     .first = MBART_FIRST,
     .n_first = 3,
     .codes = MBART,
     .form = "%.*s",
     .language = "en_XX",
     .special = "<mask>"},
    {.classes = "PegasusTokenizer",
     .model_types = "pegasus",
     .file = "spiece.model",
     .first = "<pad> </s> <mask_1> <mask_2>",
     .n_first = 2,
     .masks = true,
     .special = "<unk>"},
    {.classes = "T5Tokenizer MT5Tokenizer",
     .model_types = "t5 mt5 umt5",
     .file = "spiece.model",
     .extra_ids = true,
     .special = "<pad> </s> <unk>"},
};
enum { N_FAMILIES = sizeof families / sizeof *families, PEGASUS_OFFSET = 103 };

struct loader {
    struct spw_tok_loader base;
    struct spw_spm spm;
    const struct family *family; /* NULL: only pieces */
    struct spw_keys config;      /* tokenizer_config.json */
    json_t *vocab;               /* owned: vocab.json; NULL: none */
    json_t *root;                /* owned: "added_tokens", as in tokenizer.json */
    int32_t *ids;                /* owned [spm.n]; -1: vocab.json does not have the piece */
};

/* ---- lists of words ---- */

/* The next word of a list, which goes on there; 0: no more. */
static size_t next_word(const char **list)
{
    *list += strspn(*list, " ");
    return strcspn(*list, " ");
}

static bool has_word(const char *list, const char *word, size_t bytes)
{
    for (size_t n; (n = next_word(&list)); list += n)
        if (n == bytes && !memcmp(list, word, n))
            return true;
    return false;
}

/* ---- tokens ---- */

/* Whether the library looks for the piece in a text. */
static bool is_of_model(const struct loader *l, const struct spw_spm_piece *p)
{
    return p->type == NORMAL || p->type == BYTE || (p->type == USER_DEFINED && l->spm.unigram);
}

static int place(struct loader *l, size_t i, int32_t id)
{
    const struct spw_spm_piece *p = &l->spm.pieces[i];
    l->ids[i] = id;
    return is_of_model(l, p) ? spw_tok_build_token(&l->base.build, p->text, p->bytes, id)
                             : spw_tok_build_named(&l->base.build, p->text, p->bytes, id);
}

static int place_in_order(struct loader *l)
{
    const struct spw_tok_build *b = &l->base.build;
    const char *first = l->family && l->family->first ? l->family->first : "";
    char text[32];
    for (size_t n; (n = next_word(&first)); first += n)
        SPW_TRY(spw_tok_build_named(b, first, n, (int32_t)b->t->n_entries));
    for (int i = 2; l->family && l->family->masks && i < PEGASUS_OFFSET; i++) {
        const int n = snprintf(text, sizeof text, "<unk_%d>", i);
        SPW_TRY(spw_tok_build_named(b, text, (size_t)n, (int32_t)b->t->n_entries));
    }
    for (size_t i = l->family ? l->family->n_first : 0; i < l->spm.n; i++)
        SPW_TRY(place(l, i, (int32_t)b->t->n_entries));
    return 0;
}

/* The pieces of the model, then what else vocab.json has. */
static int place_by_text(struct loader *l)
{
    const struct spw_tok_build *b = &l->base.build;
    const char *token;
    json_t *value;
    for (size_t i = 0; i < l->spm.n; i++) {
        const struct spw_spm_piece *p = &l->spm.pieces[i];
        int32_t id;
        value = json_object_getn(l->vocab, p->text, p->bytes);
        if (!value || !is_of_model(l, p))
            continue;
        SPW_TRY(spw_tok_get_id(&l->base, value, "vocab.json", "", &id));
        SPW_TRY(place(l, i, id));
    }
    json_object_foreach(l->vocab, token, value)
    {
        const size_t n = strlen(token);
        int32_t id;
        if (!n || spw_tok_known(b->t, token, n) >= 0)
            continue;
        SPW_TRY(spw_tok_get_id(&l->base, value, "vocab.json", token, &id));
        SPW_TRY(spw_tok_build_named(b, token, n, id));
    }
    return 0;
}

/* Pieces without an id come last, when all ids are known. */
static int place_hidden(struct loader *l)
{
    struct spw_tokenizer *t = l->base.t;
    for (size_t i = l->family ? l->family->n_first : 0; i < l->spm.n; i++) {
        if (l->ids[i] >= 0 || !is_of_model(l, &l->spm.pieces[i]))
            continue;
        SPW_TRY(place(l, i, (int32_t)t->n_entries));
        t->n_hidden++;
    }
    return 0;
}

static int read_unknown(struct loader *l)
{
    struct spw_tokenizer *t = l->base.t;
    const struct spw_spm_piece *p = &l->spm.pieces[l->spm.unknown];
    t->has_unk = t->fuse_unk = true;
    t->unk_id = spw_tok_known(t, p->text, p->bytes);
    return t->unk_id >= 0
               ? 0
               : spw_fail(l->base.err, -EINVAL, "%s: found no token \"%.*s\", expected one in %s",
                          l->base.name, (int)spw_min_u64(p->bytes, 40), p->text,
                          l->base.build.vocab_key);
}

/* ---- scores ---- */

static int load_unigram(struct loader *l)
{
    struct spw_tokenizer *t = l->base.t;
    const struct spw_spm *m = &l->spm;
    float least = INFINITY, most = -INFINITY;
    SPW_TRY(spw_grow(&t->scores, &t->score_capacity, t->n_entries, sizeof *t->scores));
    for (size_t i = 0; i < t->n_entries; i++)
        t->scores[i] = -INFINITY;
    for (size_t i = 0; i < m->n; i++) {
        least = m->pieces[i].type == NORMAL ? fminf(least, m->pieces[i].score) : least;
        most = m->pieces[i].type == NORMAL ? fmaxf(most, m->pieces[i].score) : most;
    }
    for (size_t i = 0; i < m->n; i++) {
        const struct spw_spm_piece *p = &m->pieces[i];
        if (l->ids[i] >= 0 && p->type == NORMAL)
            t->scores[l->ids[i]] = (double)p->score;
        else if (l->ids[i] >= 0 && p->type == USER_DEFINED) /* better than all others */
            t->scores[l->ids[i]] = (double)((float)p->bytes * most) - 0.1;
    }
    t->model = SPW_TOK_UNIGRAM;
    t->sums_f32 = true;
    t->unknown_score = (double)((isfinite(least) ? least : 0) - 10);
    return 0;
}

static int load_ranks(struct loader *l)
{
    struct spw_tok_score *scores = spw_alloc(l->spm.n * sizeof *scores);
    size_t n = 0;
    for (size_t i = 0; scores && i < l->spm.n; i++)
        if (l->ids[i] >= 0 && l->spm.pieces[i].type == NORMAL)
            scores[n++] = (struct spw_tok_score){l->spm.pieces[i].score, l->ids[i]};
    const int rc = scores ? spw_tok_build_ranks(&l->base.build, scores, n) : -ENOMEM;
    spw_free(scores);
    return rc;
}

/* ---- added tokens and the template ---- */

/* `next`: the id of a text that is not known; the one behind it afterwards. */
static int add_own(struct loader *l, const char *text, bool special, int32_t *next)
{
    json_t *token = spw_special_token(text, special);
    const int32_t known = spw_tok_known(l->base.t, text, strlen(text));
    const bool takes_spaces = !strcmp(text, "<mask>");
    /* token may be NULL: jansson then fails, too */
    int rc = json_object_set_new(token, "id", json_integer(known < 0 ? *next : known)) ||
                     json_object_set_new(token, "lstrip", json_boolean(takes_spaces)) ||
                     json_array_append(json_object_get(l->root, "added_tokens"), token)
                 ? -ENOMEM
                 : 0;
    *next += known < 0;
    json_decref(token);
    return rc;
}

static int add_list(struct loader *l, const char *list, const char *form, int32_t *next)
{
    char text[32];
    for (size_t n; list && (n = next_word(&list)); list += n) {
        snprintf(text, sizeof text, form, (int)n, list);
        SPW_TRY(add_own(l, text, true, next));
    }
    return 0;
}

static int add_numbered(struct loader *l, int32_t *next)
{
    const struct family *f = l->family;
    uint32_t n = f->extra_ids ? 100 : 0, offset = PEGASUS_OFFSET;
    char text[32];
    if (f->extra_ids)
        SPW_TRY(spw_keys_u32(&l->config, "extra_ids", 0, 10000, &n));
    if (f->masks)
        SPW_TRY(spw_keys_u32(&l->config, "offset", PEGASUS_OFFSET, PEGASUS_OFFSET, &offset));
    for (uint32_t i = 2; f->masks && i < offset; i++) {
        snprintf(text, sizeof text, "<unk_%u>", i);
        SPW_TRY(add_own(l, text, true, next));
    }
    for (; n; n--) {
        snprintf(text, sizeof text, "<extra_id_%u>", n - 1);
        SPW_TRY(add_own(l, text, true, next));
    }
    return 0;
}

/* The tokens of the family and of the folder's other files. The tokenizers in Python look for them
 * in the text as it is, also for those that are called normalized. */
static int load_added(struct loader *l, size_t n_vocab)
{
    json_t *added = json_object_get(l->root, "added_tokens"), *token;
    size_t i;
    l->base.n_own = json_array_size(added);
    l->base.n_vocab = n_vocab;
    SPW_TRY(spw_tok_merge_added(l->base.special, l->root));
    json_array_foreach(added, i, token)
    {
        if (json_object_set_new(token, "normalized", json_false()))
            return -ENOMEM;
    }
    return spw_tok_load_added(&l->base, added);
}

static int add_tokens(struct loader *l)
{
    const struct family *f = l->family;
    int32_t next = (int32_t)(l->vocab ? json_object_size(l->vocab) : l->base.t->n_entries);
    const char *codes = f->codes, *which = NULL;
    SPW_TRY(SPW_OR_NULL(spw_keys_string, &l->config, "language_codes", &which));
    if (f->listed && codes && which && !strcmp(which, "wmt21"))
        codes = WMT_21;
    SPW_TRY(add_list(l, f->first, "%.*s", &next));
    SPW_TRY(add_list(l, codes, f->form, &next));
    SPW_TRY(add_numbered(l, &next));
    SPW_TRY(add_list(l, f->special, "%.*s", &next));
    for (size_t i = 0; i < l->spm.n && !l->spm.unigram; i++) {
        const struct spw_spm_piece *p = &l->spm.pieces[i];
        if (p->type != USER_DEFINED || l->ids[i] < 0)
            continue;
        SPW_TRY(add_own(l, spw_tokenizer_token(l->base.t, l->ids[i]), false, &next));
    }
    return load_added(l, (size_t)next);
}

static int add_around(struct loader *l, struct spw_tok_ids *ids, const char *text)
{
    const int32_t id = spw_tokenizer_id(l->base.t, text);
    return id >= 0 ? spw_tok_ids_add(ids, id)
                   : spw_fail(l->base.err, -EINVAL, "%s: found no token \"%.40s\", expected one",
                              l->base.name, text);
}

/* eos_token behind a text, and the language of the source. */
static int load_template(struct loader *l)
{
    const struct family *f = l->family;
    struct spw_tokenizer *t = l->base.t;
    const char *eos = json_string_value(
        json_object_get(json_object_get(l->base.special->named, "eos_token"), "content"));
    const char *language = f->language;
    char text[64] = "";
    SPW_TRY(SPW_OR_NULL(spw_keys_string, &l->config, "src_lang", &language));
    SPW_TRY(add_around(l, &t->suffix, eos ? eos : "</s>"));
    if (!f->codes)
        return 0;
    snprintf(text, sizeof text, f->form, 40, language);
    return add_around(l, f->before ? &t->prefix : &t->suffix, text);
}

/* ---- all of it ---- */

static int refuse_separate(const struct loader *l)
{
    bool separate = false;
    SPW_TRY(spw_keys_bool(&l->config, "separate_vocabs", &separate));
    return separate ? spw_keys_refuse(&l->config, "separate_vocabs", "false") : 0;
}

static int load(struct loader *l)
{
    struct spw_tokenizer *t = l->base.t;
    const struct spw_tok_spaces spaces = {.charsmap = l->spm.charsmap,
                                          .charsmap_bytes = l->spm.charsmap_bytes,
                                          .prefix = l->spm.adds_space,
                                          .strips = l->spm.strips,
                                          .trims = true};
    l->ids = spw_alloc(l->spm.n * sizeof *l->ids);
    if (!l->ids)
        return -ENOMEM;
    for (size_t i = 0; i < l->spm.n; i++)
        l->ids[i] = -1;
    t->byte_fallback = l->spm.byte_fallback;
    SPW_TRY(l->vocab ? place_by_text(l) : place_in_order(l));
    SPW_TRY(read_unknown(l));
    SPW_TRY(spw_tok_build_spaces(&l->base.build, &spaces));
    if (l->family) {
        SPW_TRY(refuse_separate(l));
        SPW_TRY(add_tokens(l));
        SPW_TRY(load_template(l));
        t->marks_language = l->family->marks;
    }
    SPW_TRY(place_hidden(l));
    spw_tok_build_characters(&l->base.build);
    SPW_TRY(l->spm.unigram ? load_unigram(l) : load_ranks(l));
    return spw_tok_build_finish(&l->base.build);
}

/* `vocab`: NULL, or owned by the callee. */
static int parse(struct spw_tokenizer **out, const char *bytes, size_t n,
                 const struct family *family, json_t *vocab,
                 const struct spw_special_tokens *special, const char *name, struct spw_error *err)
{
    struct spw_tokenizer *t = spw_tok_new(err);
    struct loader l = {
        .base = {.build = {t, name, err, family && family->listed ? "vocab.json" : "pieces", ""},
                 .t = t,
                 .special = special,
                 .name = name,
                 .err = err},
        .family = family,
        .config = {.file = "tokenizer_config.json",
                   .prefix = "",
                   .object = special ? special->config : NULL,
                   .err = err},
        .vocab = vocab,
        .root = json_pack("{s:[]}", "added_tokens")};
    int rc = t && l.root ? spw_spm_read(&l.spm, bytes, n, name, err) : -ENOMEM;
    if (!rc)
        rc = load(&l);
    spw_spm_free(&l.spm);
    json_decref(l.vocab);
    json_decref(l.root);
    spw_free(l.ids);
    return spw_tok_opened(out, t, rc, name, err);
}

int spw_tokenizer_parse_spm(struct spw_tokenizer **out, const char *bytes, size_t n,
                            const char *name, struct spw_error *err)
{
    return parse(out, bytes, n, NULL, NULL, NULL, name, err);
}

const char *spw_tok_spm_file(size_t i)
{
    static const char *const names[] = {"source.spm", "sentencepiece.bpe.model", "spiece.model"};
    return i < sizeof names / sizeof *names ? names[i] : NULL;
}

/* ---- folders ---- */

static int read_json(const char *folder, const char *name, json_t **out, struct spw_error *err)
{
    char *path = spw_file_join(folder, name);
    const int rc = spw_special_tokens_json(path, out, err);
    spw_free(path);
    return rc;
}

/* The family that has the name among its classes, or among its types of models. */
static const struct family *family_of(const char *name, size_t bytes, bool is_class)
{
    for (int i = 0; i < N_FAMILIES; i++)
        if (has_word(is_class ? families[i].classes : families[i].model_types, name, bytes))
            return &families[i];
    return NULL;
}

/* By the class of the tokenizer, which either file may name: another class may use the same pieces
 * in another way. Without one, by the type of the model. NULL: none that is known. */
static int find_family(const struct family **out, const char *folder,
                       const struct spw_special_tokens *special, struct spw_error *err)
{
    const char *key = "tokenizer_class";
    json_t *config;
    SPW_TRY(read_json(folder, "config.json", &config, err));
    const char *name = json_string_value(json_object_get(special->config, key));
    const char *type = json_string_value(json_object_get(config, "model_type"));
    name = name ? name : json_string_value(json_object_get(config, key));
    const size_t n = name ? strlen(name) : 0, fast = n > 4 && !strcmp(name + n - 4, "Fast") ? 4 : 0;
    *out = name   ? family_of(name, n - fast, true)
           : type ? family_of(type, strlen(type), false)
                  : NULL;
    json_decref(config);
    return 0;
}

static int open_family(struct spw_tokenizer **out, const char *folder, const struct family *family,
                       const struct spw_special_tokens *special, struct spw_error *err)
{
    json_t *vocab = NULL;
    char *bytes, *path = spw_file_join(folder, family->file);
    size_t n;
    int rc = path ? spw_file_read(path, SPW_TOKENIZER_MOST_BYTES, &bytes, &n, err) : -ENOMEM;
    if (!rc) {
        rc = family->listed ? read_json(folder, "vocab.json", &vocab, err) : 0;
        rc = rc                         ? rc
             : family->listed && !vocab ? -ENOENT
                                        : parse(out, bytes, n, family, vocab, special, path, err);
        spw_free(bytes);
    }
    spw_free(path);
    return rc;
}

int spw_tok_open_spm(struct spw_tokenizer **out, const char *folder,
                     const struct spw_special_tokens *special, struct spw_error *err)
{
    const struct family *family;
    *out = NULL;
    int rc = find_family(&family, folder, special, err);
    if (!rc)
        rc = family ? open_family(out, folder, family, special, err) : -ENOENT;
    return rc == -ENOMEM ? spw_fail(err, rc, "%s: out of memory", folder) : rc;
}
