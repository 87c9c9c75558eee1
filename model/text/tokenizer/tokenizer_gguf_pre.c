/* See tokenizer_gguf_pre.h. The patterns are those of the models' own tokenizer.json, as
 * llama.cpp's src/llama-vocab.cpp quotes them beside its names; for "default", which no model has,
 * the patterns are llama.cpp's. */
#include "model/text/tokenizer/tokenizer_gguf_pre.h"

#include <string.h>

#define GPT2 SPW_TOK_GPT2_PATTERN
#define LETTERS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define OTHERS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3 LETTERS "\\p{N}{1,3}" OTHERS
#define QWEN2 LETTERS "\\p{N}" OTHERS
#define QWEN35                                                                                     \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"                   \
    " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
#define CODE_OTHERS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT4O UPPER "*" LOWER "+" SHORT UPPER "+" LOWER "*" SHORT "\\p{N}{1,3}" CODE_OTHERS
#define TEKKEN UPPER "*" LOWER "+|" UPPER "+" LOWER "*|\\p{N}" CODE_OTHERS
#define DEEPSEEK3                                                                                  \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"                                       \
    "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|"        \
    "\\s+(?!\\S)|\\s+"
#define SPACES(n) "\\s{" n "}(?!\\S)|"
#define JAIS2                                                                                      \
    LETTERS "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" SPACES("512")              \
        SPACES("256") SPACES("128") SPACES("64") SPACES("32") SPACES("16") SPACES("8") SPACES("4") \
            SPACES("1,2") "\\s{1}"
#define EXAONE_MOE                                                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|"    \
    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
#define SEED_CODER LETTERS "\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define HAN_AND_KANA                                                                               \
    "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+"

/* U+4E00 to U+9FA5, U+0800 to U+4E00, U+AC00 to U+D7FF */
#define HAN_AND_OTHERS                                                                             \
    "[\xe4\xb8\x80-\xe9\xbe\xa5\xe0\xa0\x80-\xe4\xb8\x80\xea\xb0\x80-\xed\x9f\xbf]+"

/* The letters with a case that the tokenizer of DeepSeek LLM lists. */
#define CASED                                                                                      \
    "[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ"    \
    "Ⴀ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"         \
    "ὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴ"           \
    "ῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻ"       \
    "Ȿ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚ"          \
    "ａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]"

static const struct spw_tok_gguf_pre pres[] = {
    {.name = "llama-bpe", .splits = {LLAMA3}, .ignore_merges = true, .bos = true},
    {.name = "llama3", .splits = {LLAMA3}, .ignore_merges = true, .bos = true},
    {.name = "llama-v3", .splits = {LLAMA3}, .ignore_merges = true, .bos = true},
    {.name = "falcon3", .splits = {LLAMA3}, .ignore_merges = true, .bos = true},
    {.name = "falcon-h1", .splits = {LLAMA3}, .ignore_merges = true, .bos = true},
    {.name = "pixtral", .splits = {LLAMA3}, .ignore_merges = true, .bos = true},
    {.name = "midm-2.0", .splits = {LLAMA3}, .ignore_merges = true, .bos = true},
    {.name = "lfm2", .splits = {LLAMA3}, .ignore_merges = true, .bos = true},
    {.name = "smaug-bpe", .splits = {LLAMA3}},
    {.name = "dbrx", .splits = {LLAMA3}},
    {.name = "chatglm-bpe", .splits = {LLAMA3}},
    {.name = "glm4", .splits = {LLAMA3}, .ignore_merges = true},
    {.name = "qwen2", .splits = {QWEN2}, .nfc = true},
    {.name = "qwen35", .splits = {QWEN35}, .nfc = true},
    {.name = "deepseek-r1-qwen", .splits = {QWEN2}, .nfc = true},
    {.name = "gpt-4o", .splits = {GPT4O}},
    {.name = "llama4", .splits = {GPT4O}},
    {.name = "minimax-m2", .splits = {GPT4O}},
    /* llama.cpp counts groups of digits without looking at what stands beside them. */
    {.name = "tiny_aya", .splits = {"\\d{1,3}(?=(?:\\d{3})*\\b)", GPT4O}},
    {.name = "minicpm5",
     .splits = {"\\p{N}{1,3}", LETTERS "\\p{N}+" OTHERS},
     .ignore_merges = true},
    {.name = "tekken", .splits = {TEKKEN}, .ignore_merges = true, .bos = true},
    {.name = "deepseek-v3", .splits = {"\\p{N}{1,3}", HAN_AND_KANA, DEEPSEEK3}},
    {.name = "deepseek-coder",
     .splits = {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", HAN_AND_OTHERS, "\\p{N}"}},
    {.name = "deepseek-llm",
     .splits = {"[\r\n]", "\\s?" CASED "+", "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$",
                HAN_AND_OTHERS, "\\p{N}+"}},
    {.name = "hunyuan-dense", .splits = {"\\p{N}{1,3}", HAN_AND_KANA, DEEPSEEK3}},
    {.name = "seed-coder", .splits = {SEED_CODER}},
    {.name = "smollm", .splits = {"\\p{N}", GPT2}},
    {.name = "starcoder", .splits = {"\\p{N}", GPT2}},
    {.name = "refact", .splits = {"\\p{N}", GPT2}}, /* of Granite 3 */
    {.name = "mellum2", .splits = {"\\p{N}", GPT2}},
    {.name = "minerva-7b", .splits = {"\\p{N}", GPT2}},
    {.name = "command-r", .splits = {"\\p{N}", GPT2}, .nfc = true},
    {.name = "hunyuan", .splits = {QWEN2}},
    {.name = "solar-open", .splits = {QWEN2}},
    {.name = "kormo", .splits = {QWEN2}},
    {.name = "megrez", .splits = {QWEN2}},
    {.name = "stablelm2", .splits = {QWEN2}, .nfc = true},
    {.name = "gpt-2", .splits = {GPT2}},
    {.name = "phi-2", .splits = {GPT2}},
    {.name = "mellum", .splits = {GPT2}},
    {.name = "trillion", .splits = {GPT2}},
    {.name = "a.x-4.0", .splits = {GPT2}},
    {.name = "exaone4", .splits = {GPT2}},
    {.name = "exaone-moe", .splits = {EXAONE_MOE}},
    {.name = "jais-2", .splits = {JAIS2}},
    {.name = "olmo", .splits = {GPT2}, .nfc = true},
    {.name = "default", .splits = {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

const struct spw_tok_gguf_pre *spw_tok_gguf_pre_find(const char *name)
{
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++)
        if (!strcmp(name, pres[i].name))
            return &pres[i];
    return NULL;
}

static bool same_splits(const char *const a[SPW_TOK_GGUF_SPLITS],
                        const char *const b[SPW_TOK_GGUF_SPLITS])
{
    for (int i = 0; i < SPW_TOK_GGUF_SPLITS; i++)
        if (!a[i] != !b[i] || (a[i] && strcmp(a[i], b[i]) != 0))
            return false;
    return true;
}

const struct spw_tok_gguf_pre *spw_tok_gguf_pre_like(const char *const splits[SPW_TOK_GGUF_SPLITS],
                                                     bool ignore_merges, bool nfc)
{
    const struct spw_tok_gguf_pre *found = NULL;
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++) {
        const struct spw_tok_gguf_pre *p = &pres[i];
        bool same = p->ignore_merges == ignore_merges && same_splits(p->splits, splits);
        if (same && p->nfc == nfc)
            return p;
        found = same && !found ? p : found;
    }
    return found;
}
