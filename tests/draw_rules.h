/* Draws which tokens may follow in an answer. */
#ifndef SPW_TESTS_DRAW_RULES_H
#define SPW_TESTS_DRAW_RULES_H

#include "base/token_rules.h"
#include "tests/check.h"

/* Of an answer of up to `most` tokens. ids: of the lists, one each. */
static inline struct spw_token_rules draw_rules(int32_t ids[SPW_TOKEN_LISTS], uint32_t vocab,
                                                uint64_t most, uint64_t *seed)
{
    struct spw_token_rules r = {0};
    for (int i = 0; i < SPW_TOKEN_LISTS; i++) {
        ids[i] = (int32_t)(check_random(seed) % vocab);
        if (check_random(seed) % 3 == 0)
            r.lists[i] = (struct spw_token_list){&ids[i], 1};
    }
    r.no_repeat_ngram_size = check_random(seed) % 3 ? 0 : check_range(seed, 2, 4);
    r.min_length = check_random(seed) % 3 ? 0 : check_range(seed, 1, 2 * most);
    r.min_new_tokens = check_random(seed) % 3 ? 0 : check_range(seed, 1, most);
    return r;
}

#endif
