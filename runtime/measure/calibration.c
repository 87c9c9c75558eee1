/* The calibration text: see calibration.h. It has a little of everything that is common in
 * practice: prose, speech, names with unpredictable numbers, a table, code, digits, and other
 * languages. */
#include "runtime/measure/calibration.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static const char text[] =
    "The mill at Harrow Ford had stood empty for eleven years when the surveyor came to measure "
    "it. He arrived on a grey morning in October, with a brass level, two poles and a boy to "
    "carry them, and he asked at the inn for anybody who remembered how the water used to run. "
    "The landlord sent him to old Miriam Tull, who lived above the weir and had kept the sluice "
    "book for her father. She was shelling beans when he knocked, and she did not get up.\n\n"
    "\"You will want to know about the spring of the flood,\" she said. \"Everybody does. It rose "
    "four feet in a night and took the footbridge, but the wheel never stopped. My father opened "
    "the upper gate at dusk, the lower one at midnight, and let the river go round us. Water is "
    "patient. If you give it a way out it will take it, and if you do not it will make one.\"\n\n"
    "\"And the book?\" asked the surveyor. \"Is it still here?\"\n\n"
    "\"Where else would it be?\" She pointed with her knife at a shelf beside the chimney. "
    "Between a cracked jug and a box of candles stood a narrow volume bound in green cloth. He "
    "took it down and read, standing by the window, until the light was gone. Every day had a "
    "line of its own: the height at the post, the hour at which the gates were moved, the sacks "
    "that were ground, and now and then a word about the weather or the price of barley.\n\n"
    "Keepers and their stations, as they were entered in the spring: Aldous Venn, lock 17, key "
    "4403; Berta Quill, lock 29, key 8126; Caspar Ode, lock 3, key 5570; Dinah Marsh, lock 44, "
    "key 1938; Edmund Fray, lock 8, key 7261; Flora Pike, lock 31, key 6094; Gideon Ashby, lock "
    "52, key 2317; Hester Lowe, lock 20, key 9485; Ivo Crane, lock 11, key 3752; Judith Salter, "
    "lock 36, key 1609.\n\n"
    "| day | height | gate | sacks |\n|-----|--------|------|-------|\n"
    "| Mon | 2.41 m | 0.30  | 18 |\n| Tue | 2.38 m | 0.35  | 21 |\n| Wed | 2.57 m | 0.10  | 7 |\n"
    "| Thu | 3.02 m | 0.00  | 0 |\n| Fri | 2.76 m | 0.15  | 12 |\n| Sat | 2.49 m | 0.25  | 16 |\n\n"
    "In the evening he wrote to the company. The fall between the upper and the lower post is "
    "one metre and eighty-four centimetres, he began; the channel is sound for two thirds of its "
    "length and wants new boards for the rest; the wheel itself can be saved, though the shaft "
    "cannot. He added up the timber, the iron and the wages, crossed out the sum, and added it "
    "up again. Then he sat for a while listening to the river, which was louder at night, and "
    "wondered whether anybody would come to grind barley at a mill that had been forgotten.\n\n"
    "```c\n"
    "/* The level behind a gate that stays open for `hours`. */\n"
    "static double level_after(double level, double inflow, double gate, int hours)\n"
    "{\n"
    "    for (int hour = 0; hour < hours; hour++) {\n"
    "        double outflow = 1.7 * gate * sqrt(fmax(level, 0.0));\n"
    "        level += (inflow - outflow) / 12.5;\n"
    "        if (level > 3.2)\n"
    "            return 3.2; /* it runs over the crest */\n"
    "    }\n"
    "    return level;\n"
    "}\n"
    "```\n\n"
    "{\"station\": \"Harrow Ford\", \"id\": 70413, \"posts\": [{\"name\": \"upper\", \"height\": "
    "2.41}, {\"name\": \"lower\", \"height\": 0.57}], \"open\": false, \"checked\": "
    "\"1887-10-14T06:30:00Z\"}\n\n"
    "def mean(values):\n"
    "    total = 0\n"
    "    for value in values:\n"
    "        total += value\n"
    "    return total / len(values) if values else None\n\n"
    "3141592653 5897932384 6264338327 9502884197 1693993751\n"
    "0582097494 4592307816 4062862089 9862803482 5342117067\n\n"
    "Le moulin est vieux, mais l'eau est toujours jeune. Die M\xc3\xbchle steht still, und doch "
    "h\xc3\xb6rt man den Fluss. El agua no olvida el camino que una vez tom\xc3\xb3.\n\n"
    "The answer came three weeks later, on a single sheet. The company thanked Mr. Renwick for "
    "his exact and thorough report; it regretted that the sum named in it was beyond what could "
    "be spent in the present year; it begged him to go on to the next site, which was the fulling "
    "mill at Stowe, and to be sparing with paper. He folded the letter twice and put it into the "
    "sluice book, at the page of the flood, where Miriam Tull found it when the first snow fell. "
    "She read it, laughed, and turned it over. On the back she entered the height at the post: "
    "two metres and thirty-six, falling slowly, gates closed, no sacks, wind from the north.\n";

/* The same ids in every run; without 0, 1 and 2, which are usually special tokens. */
static void draw(int32_t *tokens, size_t n, uint32_t vocab)
{
    uint64_t state = 0x5eed;
    uint32_t low = vocab > 16 ? 3 : 0;
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
        tokens[i] = (int32_t)(low + (state >> 33) % (vocab - low));
    }
}

/* -ENOENT: the model has no tokenizer. */
static int encode(int32_t **ids, size_t *n, const struct spw_source *source, struct spw_error *err)
{
    struct spw_tokenizer *t = NULL;
    SPW_TRY(source->ops->tokenizer(source, &t, err));
    int rc = spw_tokenizer_encode(t, text, sizeof text - 1, true, ids, n, err);
    spw_tokenizer_close(t);
    return rc;
}

/* The first half of the tokens. */
static int fill_half(int32_t *tokens, size_t n, const struct spw_source *source, uint32_t vocab,
                     struct spw_error *err)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int rc = encode(&ids, &n_ids, source, err);
    if (rc && rc != -ENOENT)
        return rc;
    bool known = n_ids > 0;
    for (size_t i = 0; i < n_ids; i++)
        known = known && ids[i] >= 0 && (uint32_t)ids[i] < vocab;
    for (size_t i = 0; i < n && known; i++)
        tokens[i] = ids[i % n_ids];
    if (!known) /* no tokenizer, one of another model, or one that knows nothing of the text */
        draw(tokens, n, vocab);
    spw_free(ids);
    return 0;
}

int spw_calibration_fill(int32_t *tokens, size_t n, const struct spw_source *source,
                         const struct spw_model_config *config, struct spw_error *err)
{
    SPW_TRY(fill_half(tokens, n / 2, source, config->vocab, err));
    spw_error_clear(err);
    memcpy(tokens + n / 2, tokens, n / 2 * sizeof *tokens);
    return 0;
}

/* Each checksum is the seed of the next one. A tokenizer of megabytes takes a millisecond. */
int spw_calibration_name(char out[17], const struct spw_source *source, struct spw_error *err)
{
    enum { PIECE_BYTES = 1 << 14 };
    char *tokenizer = NULL;
    size_t bytes;
    uint64_t sum = XXH3_64bits(text, sizeof text);
    int rc = source->ops->text(source, SPW_SOURCE_TOKENIZER, &tokenizer, &bytes, err);
    for (size_t at = 0; !rc && at < bytes; at += PIECE_BYTES)
        sum = XXH3_64bits_withSeed(tokenizer + at, spw_min_u64(bytes - at, PIECE_BYTES), sum);
    spw_free(tokenizer);
    if (rc && rc != -ENOENT)
        return rc;
    spw_error_clear(err);
    snprintf(out, 17, "%016llx", (unsigned long long)sum);
    return 0;
}
