#include "base/token_rules.h"

const char *spw_token_list_name(enum spw_token_list_kind kind)
{
    static const char *const names[] = {[SPW_FORCED_BOS] = "forced_bos_token_id",
                                        [SPW_FORCED_EOS] = "forced_eos_token_id",
                                        [SPW_SUPPRESS] = "suppress_tokens",
                                        [SPW_BEGIN_SUPPRESS] = "begin_suppress_tokens",
                                        [SPW_BAD_WORDS] = "bad_words_ids"};
    return names[kind];
}
