/* Every option of every subcommand, in the order in which --help shows them: see options.h. The
 * value in parentheses at the end of a help text is the default. */
#include "tools/command/options/options.h"

static const struct cli_choice devices[] = {
    {"auto", SPW_BACKEND_AUTO}, {"cpu", SPW_BACKEND_CPU}, {"cuda", SPW_BACKEND_CUDA}, {NULL, 0}};
static const struct cli_choice compute_types[] = {
    {"auto", SPW_DTYPE_AUTO}, {"f32", SPW_DTYPE_F32}, {"bf16", SPW_DTYPE_BF16}, {NULL, 0}};
static const struct cli_choice kv_types[] = {{"auto", SPW_DTYPE_AUTO},
                                             {"f32", SPW_DTYPE_F32},
                                             {"bf16", SPW_DTYPE_BF16},
                                             {"f16", SPW_DTYPE_F16},
                                             {"int8", CLI_KV_PRECISION + SPW_KV_INT8},
                                             {"int8:int4", CLI_KV_PRECISION + SPW_KV_INT8_INT4},
                                             {"int4", CLI_KV_PRECISION + SPW_KV_INT4},
                                             {NULL, 0}};
static const struct cli_choice fallbacks[] = {
    {"spill,quantize", SPW_ON_OOM_SPILL | SPW_ON_OOM_QUANTIZE},
    {"spill", SPW_ON_OOM_SPILL},
    {"quantize", SPW_ON_OOM_QUANTIZE},
    {"fail", SPW_ON_OOM_FAIL},
    {NULL, 0}};
static const struct cli_choice io_kinds[] = {
    {"auto", SPW_IO_AUTO}, {"uring", SPW_IO_URING}, {"threads", SPW_IO_THREADS}, {NULL, 0}};
static const struct cli_choice draft_kinds[] = {
    {"auto", SPW_DRAFTS_AUTO}, {"off", SPW_DRAFTS_OFF},     {"text", SPW_DRAFTS_TEXT},
    {"mtp", SPW_DRAFTS_MTP},   {"model", SPW_DRAFTS_MODEL}, {NULL, 0}};
static const struct cli_choice planned_drafts[] = {
    {"off", SPW_DRAFTS_OFF}, {"text", SPW_DRAFTS_TEXT}, {"mtp", SPW_DRAFTS_MTP}, {NULL, 0}};
static const struct cli_choice early_stops[] = {{"false", SPW_BEAMS_STOP_LATE},
                                                {"true", SPW_BEAMS_STOP_EARLY},
                                                {"never", SPW_BEAMS_NEVER_EARLY},
                                                {NULL, 0}};
static const struct cli_choice host_kinds[] = {
    {"auto", SPW_HOST_COMPUTE_AUTO}, {"off", SPW_HOST_COMPUTE_OFF}, {NULL, 0}};
static const struct cli_choice switches[] = {{"on", 1}, {"off", 0}, {NULL, 0}};
static const struct cli_choice progress_modes[] = {{"auto", CLI_PROGRESS_AUTO},
                                                   {"always", CLI_PROGRESS_ALWAYS},
                                                   {"never", CLI_PROGRESS_NEVER},
                                                   {NULL, 0}};
static const struct cli_choice strategies[] = {
    {"auto", 0}, {"whole", 1}, {"map-reduce", 2}, {NULL, 0}};

static const struct cli_choice quantized_types[] = {
    {"q8_0", SPW_DTYPE_Q8_0}, {"q4_0", SPW_DTYPE_Q4_0}, {NULL, 0}};

#define JOBS (CLI_BATCH | CLI_SUMMARIZE)
#define RUNS                                                                                       \
    (CLI_GENERATE | CLI_SCORE | CLI_BENCH | CLI_CHAT | JOBS | CLI_SERVE) /* commands that compute  \
                                                                          */
#define ANSWERS (CLI_GENERATE | CLI_CHAT | JOBS | CLI_SERVE)
#define PROMPTED (CLI_GENERATE | CLI_PLAN)
#define LINES (CLI_BATCH | CLI_SERVE)
#define SEARCHES (JOBS | CLI_SERVE)
#define TEXTUAL (CLI_SCORE | CLI_TOKENIZE)
#define BUDGETED (ANSWERS | CLI_SCORE | CLI_BENCH | CLI_PLAN)
#define FIELD(name) .at = offsetof(struct cli_options, name)
#define RANGE(low, high) .min = (low), .max = (high)

const struct cli_row cli_rows[] = {
    {"host", CLI_TEXT, CLI_SERVE, "Server", "ADDRESS",
     "where to listen. An address that other machines can reach needs --api-key-file (127.0.0.1)",
     FIELD(host), .everyday = CLI_SERVE},
    {"port", CLI_COUNT, CLI_SERVE, "Server", "N",
     "the port to listen on; 0 takes any free one, which the command prints (8080)", FIELD(port),
     RANGE(0, 65535), .everyday = CLI_SERVE},
    {"model-name", CLI_TEXT, CLI_SERVE, "Server", "NAME",
     "what clients call the model (the last part of MODEL's path)", FIELD(model_name),
     .everyday = CLI_SERVE},
    {"api-key-file", CLI_FILE_IN, CLI_SERVE, "Server", "FILE",
     "a file with a key on each line; a client needs one of them", FIELD(api_key_file),
     .everyday = CLI_SERVE},
    {"allowed-host", CLI_TEXTS, CLI_SERVE, "Server", "NAME",
     "also answer requests to this host name, such as that of a proxy; may be given many times",
     FIELD(allowed_hosts)},
    {"allowed-origin", CLI_TEXTS, CLI_SERVE, "Server", "ORIGIN",
     "also answer web pages of this origin, such as https://chat.example.org; may be given many "
     "times. Pages of this machine are always answered",
     FIELD(allowed_origins)},
    {"max-queue", CLI_COUNT, CLI_SERVE, "Server", "N",
     "the most answers that wait for a place, each of \"n\" and of several prompts counted; a "
     "request beyond them is refused with status 429 (1024)",
     FIELD(max_queue), RANGE(1, 1e6)},
    {"max-gap", CLI_NUMBER, CLI_SERVE, "Server", "SECONDS",
     "the longest time between two tokens of an answer while prompts of others are read (2)",
     FIELD(max_gap), RANGE(0.01, 3600), .everyday = CLI_SERVE},
    {"max-body", CLI_SIZE, CLI_SERVE, "Server", "SIZE",
     "the largest body of a request; a larger one is refused with status 413 (64MiB)",
     FIELD(max_body)},
    {"max-connections", CLI_COUNT, CLI_SERVE, "Server", "N",
     "the most connections at a time (1024)", FIELD(max_connections), RANGE(1, 65536)},
    {"prompt", CLI_TEXT, PROMPTED, "Input", "TEXT", "the text to continue", FIELD(prompt),
     .everyday = PROMPTED},
    {"prompt", CLI_TEXT, CLI_CHAT, "Input", "TEXT",
     "a question, to which the command prints one answer, and ends", FIELD(prompt),
     .everyday = CLI_CHAT},
    {"prompt-file", CLI_FILE_IN, PROMPTED, "Input", "FILE",
     "a file with the text to continue; - means stdin", FIELD(prompt_file), .everyday = PROMPTED},
    {"input-file", CLI_FILE_IN, PROMPTED, "Input", "FILE",
     "a file that the encoder of the model reads: text (T5, BART), or audio, a WAV file (Whisper). "
     "A "
     "prompt then is what the answer begins with; - means stdin",
     FIELD(input_file)},
    {"prompt-file", CLI_FILE_IN, CLI_CHAT, "Input", "FILE",
     "a text that stands before the question of --prompt. Without a question: the text is what the "
     "conversation is about on a terminal, and the question elsewhere; - means stdin",
     FIELD(prompt_file), .everyday = CLI_CHAT},
    {"prompt-file", CLI_FILE_IN, CLI_BENCH, "Input", "FILE",
     "a text of which prompts are taken; - means stdin", FIELD(prompt_file), .everyday = CLI_BENCH},
    {"prompts", CLI_FILE_IN, PROMPTED, "Input", "FILE.jsonl",
     "many prompts, one JSON object a line, such as {\"prompt\": TEXT} or {\"tokens\": [ID, ...]}, "
     "with options of its own: see the lines of jobs. An answer is one line of output, printed "
     "when "
     "it is complete",
     FIELD(prompts), .everyday = CLI_GENERATE},
    {"input", CLI_FILE_IN, CLI_BATCH, "Input", "FILE.jsonl",
     "the items: lines of an OpenAI batch file, or short lines such as {\"id\": ..., \"prompt\": "
     "...}; - means stdin",
     FIELD(input), .everyday = CLI_BATCH},
    {"shard", CLI_TEXT, JOBS, "Input", "I/N",
     "answer only part I of N parts, counted from 0. Items are distributed by their ids. Each part "
     "has an output of its own",
     FIELD(shard)},
    {"instructions", CLI_FILE_IN, CLI_SUMMARIZE, "Input", "DIR",
     "a folder with texts that tell the model what to do: whole.txt, part.txt, merge.txt (those of "
     "spillway)",
     FIELD(instructions)},
    {"messages", CLI_FILE_IN, CLI_CHAT, "Input", "FILE.json",
     "a conversation to answer: a list of {\"role\": ..., \"content\": ...}; - means stdin. The "
     "command prints one answer and ends",
     FIELD(messages)},
    {"system", CLI_TEXT, CLI_CHAT, "Input", "TEXT", "the system message", FIELD(system),
     .everyday = CLI_CHAT},
    {"tools", CLI_FILE_IN, CLI_CHAT, "Input", "FILE.json",
     "a list of functions that the model may call", FIELD(tools)},
    {"documents", CLI_FILE_IN, CLI_CHAT, "Input", "FILE.json",
     "a list of {\"title\": ..., \"text\": ...}, for chat templates that use documents",
     FIELD(documents)},
    {"chat-template", CLI_FILE_IN, CLI_CHAT | JOBS | CLI_SERVE, "Input", "FILE.jinja",
     "the chat template (the model's own); a GGUF file without one needs this for a conversation",
     FIELD(chat_template)},
    {"text", CLI_TEXT, TEXTUAL, "Input", "TEXT", "the text", FIELD(text), .everyday = CLI_SCORE},
    {"text-file", CLI_FILE_IN, TEXTUAL, "Input", "FILE", "a file with the text; - means stdin",
     FIELD(text_file), .everyday = CLI_SCORE},
    {"text-file", CLI_FILE_IN, CLI_QUANTIZE, "Input", "FILE",
     "show the loss on this text, before and after; - means stdin", FIELD(text_file)},
    {"token-ids", CLI_FILE_IN, PROMPTED | TEXTUAL, "Input", "FILE",
     "a file with token ids, separated by spaces, commas or lines; - means stdin",
     FIELD(token_ids)},
    {"prompt-tokens", CLI_COUNT, CLI_PLAN, "Input", "N",
     "plan for a prompt of N tokens; the plan needs no text", FIELD(prompt_tokens), RANGE(1, 1e12),
     .everyday = CLI_PLAN},
    {"prefix-tokens", CLI_COUNT, CLI_PLAN, "Input", "N",
     "with --prefix-cache: assume that the cache holds the first N tokens of each prompt (0)",
     FIELD(prefix_tokens), RANGE(0, 1e12)},
    {"expert-trace", CLI_FILE_IN, CLI_PLAN, "Input", "FILE",
     "count the experts that the routing in FILE misses, a trace that generate wrote",
     FIELD(expert_trace)},
    {"size", CLI_SIZE, CLI_CACHE, "Input", "SIZE", "of prune: the largest size that stays",
     FIELD(size)},
    {"decode", CLI_FLAG, CLI_TOKENIZE, "Input", NULL, "convert the ids of --token-ids to text",
     FIELD(decode)},
    {"no-special", CLI_FLAG, CLI_TOKENIZE, "Input", NULL,
     "leave out special tokens: those that the model wants around a text (bos); with --decode, "
     "all of them",
     FIELD(no_special)},

    {"resume", CLI_FILE_IN, CLI_GENERATE | CLI_PLAN, "Input", "FILE",
     "continue the run that was saved to FILE, with its prompt and options. Prints the text that "
     "the saved run had not printed: both outputs together are the output of one run",
     FIELD(resume)},

    {"strategy", CLI_CHOICE, CLI_SUMMARIZE, "Generation", "HOW",
     "whole: one pass over the whole document. map-reduce: summaries of parts, which are merged. "
     "auto: whole, if the model's context and the budgets hold the document; of a model with an "
     "encoder, if that has positions for it: max_position_embeddings, or n_positions of T5 (auto)",
     FIELD(strategy), .choices = strategies},
    {"length", CLI_TEXT, CLI_SUMMARIZE, "Generation", "WORDS",
     "the length that the model is asked for: short (100 words), medium (250), long (600), or a "
     "number of words (medium)",
     FIELD(length), .everyday = CLI_SUMMARIZE},
    {"language", CLI_TEXT, CLI_SUMMARIZE, "Generation", "NAME",
     "the language of the summaries (that of the document)", FIELD(language),
     .everyday = CLI_SUMMARIZE},
    {"focus", CLI_TEXT, CLI_SUMMARIZE, "Generation", "TEXT",
     "what the summaries pay special attention to", FIELD(focus), .everyday = CLI_SUMMARIZE},
    {"max-new-tokens", CLI_COUNT, PROMPTED | CLI_BATCH, "Generation", "N",
     "the largest number of new tokens; with --resume this includes those of the saved run (128)",
     FIELD(max_new_tokens), RANGE(0, 1e9), .everyday = PROMPTED | CLI_BATCH},
    {"max-new-tokens", CLI_COUNT, CLI_CHAT, "Generation", "N",
     "the largest number of tokens of an answer (4096, or what fits into the context)",
     FIELD(max_new_tokens), RANGE(0, 1e9), .everyday = CLI_CHAT},
    {"max-new-tokens", CLI_COUNT, CLI_SUMMARIZE, "Generation", "N",
     "the largest number of tokens of a summary (5 for each word of --length; of a model with an "
     "encoder what its files say, or 128)",
     FIELD(max_new_tokens), RANGE(0, 1e9)},
    {"max-new-tokens", CLI_COUNT, CLI_SERVE, "Generation", "N",
     "the largest number of tokens of an answer whose request names no number (4096, or what fits "
     "into the context)",
     FIELD(max_new_tokens), RANGE(0, 1e9)},
    {"stop", CLI_TEXTS, ANSWERS, "Generation", "TEXT",
     "end the answer before this text; may be given many times", FIELD(stop)},
    {"json-schema", CLI_TEXT, CLI_GENERATE, "Generation", "FILE",
     "the answer is JSON that this schema allows", FIELD(json_schema)},
    {"ignore-eos", CLI_FLAG, ANSWERS, "Generation", NULL,
     "do not end the answer at an end-of-text token", FIELD(ignore_eos)},
    {"temperature", CLI_NUMBER, ANSWERS, "Generation", "X",
     "0 always takes the most likely token (0)", FIELD(temperature), RANGE(0, 1e6),
     .everyday = CLI_GENERATE | CLI_CHAT | CLI_BATCH},
    {"top-k", CLI_COUNT, ANSWERS, "Generation", "N",
     "draw from the N most likely tokens; 0 means off (0)", FIELD(top_k), RANGE(0, 4294967295.0)},
    {"top-p", CLI_NUMBER, ANSWERS, "Generation", "X",
     "draw from the most likely tokens whose probabilities add up to X; 1 means off (1)",
     FIELD(top_p), RANGE(0, 1)},
    {"min-p", CLI_NUMBER, ANSWERS, "Generation", "X",
     "leave out tokens that are less likely than X times the most likely token; 0 means off (0)",
     FIELD(min_p), RANGE(0, 1)},
    {"repetition-penalty", CLI_NUMBER, ANSWERS, "Generation", "X",
     "divide the logits of tokens that occurred before by X; 1 means off (1)",
     FIELD(repetition_penalty), RANGE(0.001, 1000)},
    {"presence-penalty", CLI_NUMBER, ANSWERS, "Generation", "X",
     "subtract X from the logits of tokens that the answer has; 0 means off (0)",
     FIELD(presence_penalty), RANGE(-2, 2)},
    {"frequency-penalty", CLI_NUMBER, ANSWERS, "Generation", "X",
     "subtract X from the logit of a token for each time that the answer has it; 0 means off (0)",
     FIELD(frequency_penalty), RANGE(-2, 2)},
    {"logit-bias", CLI_BIASES, ANSWERS, "Generation", "ID=X",
     "add X, from -100 to 100, to the logit of the token ID; may be given many times",
     FIELD(logit_bias), RANGE(-100, 100)},
    {"no-repeat-ngram-size", CLI_COUNT, ANSWERS, "Generation", "N",
     "let no N tokens of prompt and answer occur twice in a row; 0 means off (as the model's files "
     "say)",
     FIELD(no_repeat_ngram_size), RANGE(0, 1e9)},
    {"min-length", CLI_COUNT, ANSWERS, "Generation", "N",
     "do not end the answer before it has N tokens together with the prompt; 0 means off (as the "
     "model's files say)",
     FIELD(min_length), RANGE(0, 1e9)},
    {"min-new-tokens", CLI_COUNT, ANSWERS, "Generation", "N",
     "do not end the answer before it has N tokens, and pass over --min-length; 0 means off (as "
     "the model's files say)",
     FIELD(min_new_tokens), RANGE(0, 1e9)},
    {"forced-bos-token-id", CLI_IDS, ANSWERS, "Generation", "ID|none",
     "the token after a prompt of one token (as the model's files say)",
     FIELD(token_lists[SPW_FORCED_BOS]), RANGE(0, INT32_MAX)},
    {"forced-eos-token-id", CLI_IDS, ANSWERS, "Generation", "ID,...|none",
     "one of these tokens is the last one of an answer of --max-new-tokens (as the model's files "
     "say)",
     FIELD(token_lists[SPW_FORCED_EOS]), RANGE(0, INT32_MAX)},
    {"suppress-tokens", CLI_IDS, ANSWERS, "Generation", "ID,...|none",
     "no answer has these tokens (as the model's files say)", FIELD(token_lists[SPW_SUPPRESS]),
     RANGE(0, INT32_MAX)},
    {"begin-suppress-tokens", CLI_IDS, ANSWERS, "Generation", "ID,...|none",
     "no answer begins with these tokens (as the model's files say)",
     FIELD(token_lists[SPW_BEGIN_SUPPRESS]), RANGE(0, INT32_MAX)},
    {"seed", CLI_COUNT, ANSWERS, "Generation", "N", "the same seed gives the same text (0)",
     FIELD(seed)},
    {"seed", CLI_COUNT, CLI_BENCH, "Generation", "N",
     "the same seed gives the same random prompts (0)", FIELD(seed)},
    {"n", CLI_COUNT, PROMPTED, "Generation", "N",
     "with --prompts: N answers to each prompt, with different draws (1)", FIELD(n), RANGE(1, 128)},
    {"n", CLI_COUNT, CLI_BATCH, "Generation", "N",
     "N answers to each prompt, with different draws (1)", FIELD(n), RANGE(1, 128)},

    {"num-beams", CLI_COUNT, PROMPTED | SEARCHES, "Beam search", "N",
     "search with N beams for the answer with the best score: its log-probability, divided by its "
     "length to the power of --length-penalty. The answer is printed when it is complete; 1 means "
     "off (1)",
     FIELD(num_beams), RANGE(1, SPW_BEAMS_MOST)},
    {"num-beam-groups", CLI_COUNT, CLI_GENERATE | LINES, "Beam search", "N",
     "divide the beams into N groups whose tokens differ from each other (1)",
     FIELD(num_beam_groups), RANGE(1, SPW_BEAMS_MOST)},
    {"diversity-penalty", CLI_NUMBER, CLI_GENERATE | LINES, "Beam search", "X",
     "with groups: subtract X from a token for each beam of an earlier group that has taken it "
     "(0)",
     FIELD(diversity_penalty), RANGE(0, 1e6)},
    {"length-penalty", CLI_NUMBER, CLI_GENERATE | SEARCHES, "Beam search", "X",
     "with beams: above 0 favours long answers, below 0 short ones (1)", FIELD(length_penalty),
     RANGE(-30, 30)},
    {"early-stopping", CLI_CHOICE, CLI_GENERATE | SEARCHES, "Beam search", "WHEN",
     "with beams: true ends the search when there are as many answers as beams, false when no "
     "better one is likely, never when none is possible (false)",
     FIELD(early_stopping), .choices = early_stops},
    {"num-return-sequences", CLI_COUNT, CLI_GENERATE, "Beam search", "N",
     "with beams: print the N best answers, with an empty line between them (1)",
     FIELD(num_return_sequences), RANGE(1, SPW_BEAMS_MOST)},

    {"device-memory", CLI_SIZE, RUNS | CLI_PLAN | CLI_CHECK_KV, "Memory", "SIZE",
     "hard budget of device memory; on the CPU, of working memory (what is available; on a GPU, "
     "1/32 and at least 256 MiB of that stay free)",
     FIELD(device_memory), .everyday = BUDGETED},
    {"host-memory", CLI_SIZE, RUNS | CLI_PLAN | CLI_INSPECT | CLI_CHECK_KV, "Memory", "SIZE",
     "hard budget of host memory, for what does not fit on the device; 0 means none (what is "
     "available; on the CPU the rest beside --device-memory, and at least 1/10)",
     FIELD(host_memory), .everyday = BUDGETED},
    {"disk", CLI_FILE_IN, RUNS | CLI_PLAN | CLI_INSPECT | CLI_CHECK_KV, "Memory", "DIR",
     "a directory on a fast drive, for KV that fits neither on the device nor in host memory",
     FIELD(disk), .everyday = BUDGETED},
    {"disk-memory", CLI_SIZE, RUNS | CLI_PLAN | CLI_INSPECT | CLI_CHECK_KV, "Memory", "SIZE",
     "hard budget of that directory; 0 means none (15/16 of the free space)", FIELD(disk_memory)},
    {"disk-write-limit", CLI_SIZE, RUNS | CLI_PLAN | CLI_INSPECT | CLI_CHECK_KV, "Memory", "SIZE",
     "the most bytes that the run may write to disk, to the prefix cache and to saved sessions "
     "(no limit)",
     FIELD(disk_write_limit)},
    {"prefix-cache", CLI_FILE_IN, ANSWERS | CLI_PLAN, "Memory", "DIR",
     "a directory for KV that later runs can use; the command creates it. When an answer ends, "
     "its KV is stored there. A prompt that begins with the same tokens, in any process, reads "
     "that KV instead of computing it",
     FIELD(prefix_cache)},
    {"prefix-cache-size", CLI_SIZE, ANSWERS | CLI_PLAN, "Memory", "SIZE",
     "the largest size of the prefix cache; the least recently used KV is removed first (16GiB)",
     FIELD(prefix_cache_size)},
    {"trust-prefix-cache", CLI_FLAG, ANSWERS, "Memory", NULL,
     "also use a prefix cache that other users own or can write to. What they write there "
     "becomes part of answers",
     FIELD(trust_prefix_cache)},
    {"context", CLI_COUNT, PROMPTED | JOBS | CLI_SCORE, "Memory", "N",
     "the most tokens that a sequence may have (what the prompt and its answer need)",
     FIELD(context), RANGE(1, 1e12), .everyday = CLI_PLAN},
    {"context", CLI_COUNT, CLI_CHAT, "Memory", "N",
     "the most tokens that a conversation may have (16384, or what the model was made for)",
     FIELD(context), RANGE(1, 1e12)},
    {"allow-long-context", CLI_FLAG, ANSWERS | CLI_SCORE | CLI_QUANTIZE | CLI_PLAN, "Memory", NULL,
     "allow a context longer than the model was made for (max_position_embeddings)",
     FIELD(allow_long_context)},
    {"sessions", CLI_COUNT, PROMPTED, "Memory", "N",
     "how many prompts of --prompts run at the same time (4)", FIELD(sessions), RANGE(1, 4096)},
    {"sessions", CLI_COUNT, JOBS, "Memory", "N",
     "how many items run at the same time (as many as there is memory for, at most 64; fewer where "
     "that is predicted to be faster)",
     FIELD(sessions), RANGE(1, 4096)},
    {"context", CLI_COUNT, CLI_SERVE, "Memory", "N",
     "the most tokens that a request and its answer may have (what the model was made for, or what "
     "fits the budgets)",
     FIELD(context), RANGE(1, 1e12), .everyday = CLI_SERVE},
    {"sessions", CLI_COUNT, CLI_SERVE, "Memory", "N",
     "how many requests run at the same time (as many as there is memory for, at most 64)",
     FIELD(sessions), RANGE(1, 4096)},
    {"kv-dtype", CLI_CHOICE, RUNS | CLI_PLAN | CLI_INSPECT | CLI_CHECK_KV, "Memory", "TYPE",
     "precision of the KV cache. int8, int4 and int8:int4 (keys:values) apply to old tokens only "
     "(as --compute)",
     FIELD(kv_dtype), .choices = kv_types},
    {"residual-window", CLI_COUNT, RUNS | CLI_PLAN | CLI_INSPECT | CLI_CHECK_KV, "Memory", "TOKENS",
     "how many of the newest tokens stay exact when older KV is int8 or int4 (1024)",
     FIELD(residual_window), RANGE(0, 1e12)},
#define ON_OOM                                                                                     \
    "the allowed fallbacks when memory does not suffice. spill: move KV to host memory and disk. " \
    "quantize: store old KV as int8 or int4, if --kv-dtype is auto and the model passes its "      \
    "check. fail: none "
    {"on-oom", CLI_CHOICE, (RUNS & ~(unsigned)(JOBS | CLI_SERVE)) | CLI_PLAN | CLI_INSPECT,
     "Memory", "FALLBACKS", ON_OOM "(spill,quantize)", FIELD(on_oom), .choices = fallbacks},
    {"on-oom", CLI_CHOICE, JOBS | CLI_SERVE, "Memory", "FALLBACKS", ON_OOM "(spill)", FIELD(on_oom),
     .choices = fallbacks},
    {"kv-gate", CLI_CHOICE, RUNS | CLI_PLAN, "Memory", "SWITCH",
     "on: --on-oom quantizes only if the model passes check-kv; if the result is not known, the "
     "check runs first. --kv-dtype warns if the model is known not to pass (on)",
     FIELD(kv_gate), .choices = switches},
    {"prefill-chunk", CLI_COUNT, RUNS | CLI_PLAN, "Memory", "N",
     "how many tokens of a prompt pass through a layer together (planned)", FIELD(prefill_chunk),
     RANGE(1, 1e9)},
    {"prefetch-slots", CLI_COUNT, RUNS | CLI_PLAN, "Memory", "N",
     "number of buffers that receive transfers (planned)", FIELD(prefetch_slots), RANGE(1, 256)},
    {"prefetch-splits", CLI_COUNT, RUNS | CLI_PLAN, "Memory", "N",
     "size of such a buffer, in units of 512 positions of KV (planned)", FIELD(prefetch_splits),
     RANGE(1, 64)},

    {"device", CLI_DEVICE, RUNS | CLI_PLAN | CLI_PROBE | CLI_INSPECT | CLI_CHECK_KV, "Machine",
     "NAME",
     "where to compute: auto takes a GPU that works, else the CPU; cuda:1 is the second GPU "
     "(auto)",
     FIELD(device), .choices = devices},
    {"threads", CLI_COUNT, RUNS | CLI_PLAN | CLI_PROBE | CLI_INSPECT | CLI_CHECK_KV, "Machine", "N",
     "number of compute threads (every core; only the fast cores where there are two kinds)",
     FIELD(threads), RANGE(1, 1024)},
    {"compute", CLI_CHOICE, RUNS | CLI_PLAN | CLI_INSPECT | CLI_CHECK_KV, "Machine", "TYPE",
     "type of the computation: f32 is the reference, bf16 is faster. With quantized weights bf16 "
     "takes int8 activations in groups of 128 (auto: bf16 for a model with bf16 or quantized "
     "weights, else f32)",
     FIELD(compute), .choices = compute_types},
    {"drafts", CLI_CHOICE, ANSWERS, "Machine", "HOW",
     "compute tokens that may follow an answer together with its next token, and keep those that "
     "would have been picked: the answer is the same. text: what followed the same tokens before, "
     "always. mtp: what the model's layer for further tokens predicts, or one in a file mtp-*.gguf "
     "beside a GGUF model. model: those of "
     "--draft-model. auto: those of the text, and of --draft-model or the layer, as far as they "
     "save "
     "time and leave the memory of everything else alone (auto)",
     FIELD(drafts), .choices = draft_kinds},
    {"drafts", CLI_CHOICE, CLI_PLAN, "Machine", "HOW",
     "plan for drafts of this kind, as in generate: mtp: with the weights and the KV of the layer "
     "(off, or text with --draft-tokens)",
     FIELD(drafts), .choices = planned_drafts},
    {"draft-tokens", CLI_COUNT, CLI_PLAN, "Machine", "N",
     "plan for N drafted tokens in each step of an answer, see --acceptance (0)", FIELD(n_drafts),
     RANGE(0, 15)},
    {"acceptance", CLI_NUMBER, CLI_PLAN, "Machine", "X",
     "with --draft-tokens: the odds that a drafted token stays, if those before it do (0.7)",
     FIELD(acceptance), RANGE(0, 1)},
    {"draft-model", CLI_FILE_IN, ANSWERS, "Machine", "MODEL",
     "with --drafts auto or model: a smaller model with the same tokens, which proposes what the "
     "text does "
     "not; it gets at most a quarter of the budgets",
     FIELD(draft_model)},
    {"host-compute", CLI_CHOICE, BUDGETED, "Machine", "HOW",
     "with a GPU and quantized weights that do not all fit on it: auto has the CPU multiply layers "
     "and experts in host memory, in steps of few rows, when this saves time by the measured "
     "rates; "
     "the answer is the same. off moves them to the GPU (auto)",
     FIELD(host_compute), .choices = host_kinds},
    {"io", CLI_CHOICE, ANSWERS | CLI_SCORE | CLI_PLAN | CLI_BENCH | CLI_PROBE | CLI_CHECK_KV,
     "Machine", "HOW",
     "how files are read and written: auto takes io_uring if the system allows it, else threads "
     "(auto)",
     FIELD(io), .choices = io_kinds},
    {"drive-profile", CLI_FILE_OUT, RUNS | CLI_PLAN | CLI_PROBE, "Machine", "FILE",
     "the file with the measured limits of drives and of this machine "
     "(~/.cache/spillway/drives.json)",
     FIELD(drive_profile)},
    {"kv-profile", CLI_FILE_OUT, RUNS | CLI_PLAN | CLI_CHECK_KV, "Machine", "FILE",
     "the file with the results of check-kv (~/.cache/spillway/kv-checks.json)", FIELD(kv_profile)},
    {"weight-checksums", CLI_FILE_OUT, RUNS | CLI_CHECK_KV, "Machine", "FILE",
     "the file with checksums of weights that were read from disk during a run; later reads are "
     "compared with them (~/.cache/spillway/weight-checksums)",
     FIELD(weight_checksums)},
    {"expert-profile", CLI_FILE_OUT, ANSWERS | CLI_SCORE | CLI_PLAN, "Machine", "FILE",
     "the file that says how often each expert was chosen, for models whose experts do not all fit "
     "on the device (~/.cache/spillway/experts.json)",
     FIELD(expert_profile)},
    {"redo", CLI_FLAG, CLI_PROBE | CLI_CHECK_KV, "Machine", NULL,
     "measure again, even if a result is stored", FIELD(redo)},
    {"delay-seed", CLI_COUNT, CLI_GENERATE | CLI_SCORE, "Machine", "N",
     "validation: random delays around every copy and kernel", FIELD(delay_seed)},
    {"serial-kernels", CLI_FLAG, CLI_GENERATE | CLI_SCORE | CLI_BENCH, "Machine", NULL,
     "validation: on a GPU, a kernel starts only after the kernel before it has ended",
     FIELD(serial_kernels)},

    {"contexts", CLI_COUNTS, CLI_BENCH, "Sweep", "N,N,...", "prompt lengths (128,2048)",
     FIELD(contexts), RANGE(1, 1e9), .everyday = CLI_BENCH},
    {"budgets", CLI_SIZES, CLI_BENCH, "Sweep", "SIZE,...",
     "device budgets; 0 means what is available (0)", FIELD(budgets), .everyday = CLI_BENCH},
    {"simulate", CLI_FILE_IN, CLI_BENCH, "Sweep", "RATES.json",
     "measure nothing: say what a token would take on the machines of this file, each with and "
     "without --host-compute, by their rates and the bytes that a plan counts; "
     "tools/bench/rates.json has five machines",
     FIELD(simulate)},
    {"repeat", CLI_COUNT, CLI_BENCH, "Sweep", "N",
     "number of runs of each case, in turn; the table shows medians (3)", FIELD(repeat),
     RANGE(1, 1000)},
    {"decode-tokens", CLI_COUNT, CLI_BENCH, "Sweep", "N",
     "number of tokens to decode in each run (16)", FIELD(decode_tokens), RANGE(1, 100000)},
    {"random-tokens", CLI_FLAG, CLI_BENCH, "Sweep", NULL,
     "use prompts of random tokens (unless --prompt-file is given)", FIELD(random_tokens)},
    {"drafts", CLI_CHOICE, CLI_BENCH, "Sweep", "HOW",
     "also measure an answer with drafts, as in generate, and steps of several rows (off)",
     FIELD(drafts), .choices = draft_kinds},

    {"show-reasoning", CLI_FLAG, CLI_CHAT, "Output", NULL,
     "also show the reasoning that comes before an answer: dim on a terminal, with a blank line "
     "after it",
     FIELD(show_reasoning)},
    {"output", CLI_FILE_OUT, JOBS, "Output", "FILE.jsonl",
     "the answers, one line for each item, in the order in which they are complete. A command that "
     "was interrupted continues if it is given again",
     FIELD(output), .everyday = JOBS},
    {"out-dir", CLI_TEXT, CLI_SUMMARIZE, "Output", "DIR",
     "a folder for one text file for each document, and for the lines: it becomes "
     "DIR/summaries.jsonl. The command creates it",
     FIELD(out_dir), .everyday = CLI_SUMMARIZE},
    {"errors", CLI_FILE_OUT, JOBS, "Output", "FILE.jsonl",
     "the items that have no answer, and why (OUTPUT.errors)", FIELD(errors)},
    {"retry-failed", CLI_FLAG, JOBS, "Output", NULL,
     "answer items again that had no answer in an earlier run", FIELD(retry_failed)},
    {"status", CLI_FLAG, CLI_BATCH, "Output", NULL,
     "say how many items of the given outputs are done, failed and missing, and exit with 0 if all "
     "have an answer",
     FIELD(status), .everyday = CLI_BATCH},
    {"type", CLI_CHOICE, CLI_QUANTIZE, "Output", "TYPE",
     "the type of the matrices: q8_0 has 8.5 bits a weight, q4_0 4.5", FIELD(type),
     .choices = quantized_types},
    {"json", CLI_FLAG,
     CLI_QUANTIZE | CLI_SCORE | CLI_PLAN | CLI_INSPECT | CLI_TOKENIZE | CLI_PROBE | CLI_CACHE |
         CLI_CHECK_KV,
     "Output", NULL, "print JSON instead of text", FIELD(json), .everyday = CLI_SCORE | CLI_PLAN},
    {"topology", CLI_FLAG, CLI_INSPECT, "Output", NULL,
     "show this machine, and where threads would run, instead of a model", FIELD(topology)},
    {"self-test", CLI_FLAG, CLI_INSPECT, "Output", NULL,
     "check that this device computes the bits that it should, instead of showing a model",
     FIELD(self_test)},
    {"tensors", CLI_FLAG, CLI_INSPECT, "Output", NULL, "list every tensor", FIELD(tensors)},
    {"no-probe", CLI_FLAG, CLI_PLAN, "Output", NULL,
     "do not measure the machine; the plan then has no predicted times", FIELD(no_probe)},
    {"ids", CLI_FLAG, CLI_GENERATE, "Output", NULL,
     "print token ids instead of text (for --token-ids of a model without a tokenizer)",
     FIELD(ids)},
    {"save", CLI_FILE_OUT, CLI_GENERATE, "Output", "FILE",
     "save the run to FILE when it ends, also after Ctrl-C, a signal or a failure; --resume "
     "continues it. With --resume of the same FILE only the new part is written. A FILE of "
     "another run is refused",
     FIELD(save)},
    {"save-every", CLI_COUNT, CLI_GENERATE, "Output", "N",
     "also save after every N new tokens. After a kill, --resume prints the text since the last "
     "save again",
     FIELD(save_every), RANGE(1, 1e9)},
    {"logprobs", CLI_COUNT, CLI_GENERATE | CLI_BATCH, "Output", "N",
     "give the log-probability of each new token, and the N most likely tokens at its place: in "
     "the lines of --prompts and of a job, and in --report",
     FIELD(top_logprobs), RANGE(0, 20)},
    {"report", CLI_FILE_OUT, (RUNS & ~(unsigned)CLI_SERVE) | CLI_CHECK_KV, "Output", "FILE.json",
     "write the measurements of the run: times, memory, bytes moved", FIELD(report)},
    {"dump-logits", CLI_FILE_OUT, CLI_GENERATE, "Output", "FILE.npy",
     "write the logits of every generated position, float32 [tokens, vocabulary]",
     FIELD(dump_logits)},
    {"expert-trace", CLI_FILE_OUT, CLI_GENERATE, "Output", "FILE",
     "write which experts each layer chooses, where experts do not all fit on the device; --report "
     "and plan then say how many experts other rules would have missed",
     FIELD(expert_trace)},
    {"progress", CLI_CHOICE, (RUNS & ~(unsigned)(JOBS | CLI_SERVE)) | CLI_QUANTIZE, "Output",
     "WHEN", "auto shows a progress line when stderr is a terminal (auto)", FIELD(progress),
     .choices = progress_modes},
    {"progress", CLI_CHOICE, JOBS, "Output", "WHEN",
     "auto shows a progress line when stderr is a terminal, and writes a line a minute elsewhere "
     "(auto)",
     FIELD(progress), .choices = progress_modes},
    {"quiet", CLI_FLAG, RUNS | CLI_QUANTIZE | CLI_PLAN | CLI_CHECK_KV, "Output", NULL,
     "no progress line and no notes; stderr has errors and warnings only", FIELD(quiet)},
    {.name = NULL},
};

_Static_assert(sizeof cli_rows / sizeof *cli_rows <= CLI_MAX_ROWS, "raise CLI_MAX_ROWS");
