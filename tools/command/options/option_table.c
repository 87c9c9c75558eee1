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
static const struct cli_choice rungs[] = {
    {"spill,quantize", SPW_ON_OOM_SPILL | SPW_ON_OOM_QUANTIZE},
    {"spill", SPW_ON_OOM_SPILL},
    {"quantize", SPW_ON_OOM_QUANTIZE},
    {"fail", SPW_ON_OOM_FAIL},
    {NULL, 0}};
static const struct cli_choice io_kinds[] = {
    {"auto", SPW_IO_AUTO}, {"uring", SPW_IO_URING}, {"threads", SPW_IO_THREADS}, {NULL, 0}};
static const struct cli_choice switches[] = {{"on", 1}, {"off", 0}, {NULL, 0}};
static const struct cli_choice progress_modes[] = {{"auto", CLI_PROGRESS_AUTO},
                                                   {"always", CLI_PROGRESS_ALWAYS},
                                                   {"never", CLI_PROGRESS_NEVER},
                                                   {NULL, 0}};

#define RUNS (CLI_GENERATE | CLI_SCORE | CLI_BENCH | CLI_CHAT) /* commands that compute */
#define ANSWERS (CLI_GENERATE | CLI_CHAT)
#define PROMPTED (CLI_GENERATE | CLI_PLAN)
#define TEXTUAL (CLI_SCORE | CLI_TOKENIZE)
#define FIELD(name) .at = offsetof(struct cli_options, name)
#define RANGE(low, high) .min = (low), .max = (high)

/* clang-format off: a table is read by columns */
const struct cli_row cli_rows[] = {
    {"prompt", CLI_TEXT, PROMPTED, "Input", "TEXT", "the text to continue", FIELD(prompt)},
    {"prompt-file", CLI_FILE_IN, PROMPTED | CLI_BENCH, "Input", "FILE",
     "the text to continue; - reads stdin", FIELD(prompt_file)},
    {"prompts", CLI_FILE_IN, PROMPTED, "Input", "FILE.jsonl",
     "many prompts together: a line is {\"prompt\": TEXT} or {\"tokens\": [ID, ...]}, where it "
     "likes "
     "with its own max_new_tokens, seed, temperature, top_k, top_p, min_p, repetition_penalty, "
     "stop, "
     "ignore_eos, id; answers one line each, as they end",
     FIELD(prompts)},
    {"messages", CLI_FILE_IN, CLI_CHAT, "Input", "FILE.json",
     "answer this conversation and end: a list of {\"role\": ..., \"content\": ...}; - reads stdin",
     FIELD(messages)},
    {"system", CLI_TEXT, CLI_CHAT, "Input", "TEXT", "the system message", FIELD(system)},
    {"tools", CLI_FILE_IN, CLI_CHAT, "Input", "FILE.json",
     "a list of functions that the model may call", FIELD(tools)},
    {"documents", CLI_FILE_IN, CLI_CHAT, "Input", "FILE.json",
     "a list of {\"title\": ..., \"text\": ...} for templates that know documents",
     FIELD(documents)},
    {"text", CLI_TEXT, TEXTUAL, "Input", "TEXT", "the text", FIELD(text)},
    {"text-file", CLI_FILE_IN, TEXTUAL, "Input", "FILE", "the text; - reads stdin",
     FIELD(text_file)},
    {"token-ids", CLI_FILE_IN, PROMPTED | TEXTUAL, "Input", "FILE",
     "ids, separated by spaces, commas or lines; - reads stdin", FIELD(token_ids)},
    {"prompt-tokens", CLI_COUNT, CLI_PLAN, "Input", "N", "a prompt of N tokens, without its text",
     FIELD(prompt_tokens), RANGE(1, 1e12)},
    {"prefix-tokens", CLI_COUNT, CLI_PLAN, "Input", "N",
     "with --prefix-cache: the first N tokens of each prompt would be found there (0)",
     FIELD(prefix_tokens), RANGE(0, 1e12)},
    {"size", CLI_SIZE, CLI_CACHE, "Input", "SIZE", "prune: bytes that stay at most", FIELD(size)},
    {"decode", CLI_FLAG, CLI_TOKENIZE, "Input", NULL, "from --token-ids to text", FIELD(decode)},
    {"no-special", CLI_FLAG, CLI_TOKENIZE, "Input", NULL,
     "without the ids a model wants around a text (bos); --decode: leave special tokens out",
     FIELD(no_special)},

    {"resume", CLI_FILE_IN, CLI_GENERATE | CLI_PLAN, "Input", "FILE",
     "go on where the run that was saved to FILE ended, with its prompt and options; prints the "
     "text that it had not printed yet, so that both outputs together are those of one run",
     FIELD(resume)},

    {"max-new-tokens", CLI_COUNT, PROMPTED | CLI_CHAT, "Generation", "N",
     "at most N new tokens, --resume: with those before (128, chat 4096, or what the context "
     "leaves)",
     FIELD(max_new_tokens), RANGE(0, 1e9)},
    {"stop", CLI_TEXTS, ANSWERS, "Generation", "TEXT",
     "end before this text; may be given many times", FIELD(stop)},
    {"ignore-eos", CLI_FLAG, ANSWERS, "Generation", NULL, "go on after an end-of-text token",
     FIELD(ignore_eos)},
    {"temperature", CLI_NUMBER, ANSWERS, "Generation", "X", "0 takes the likeliest token (0)",
     FIELD(temperature), RANGE(0, 1e6)},
    {"top-k", CLI_COUNT, ANSWERS, "Generation", "N", "draw from the N likeliest; 0: off (0)",
     FIELD(top_k), RANGE(0, 4294967295.0)},
    {"top-p", CLI_NUMBER, ANSWERS, "Generation", "X",
     "draw from the likeliest that sum to X; 1: off (1)", FIELD(top_p), RANGE(0, 1)},
    {"min-p", CLI_NUMBER, ANSWERS, "Generation", "X",
     "leave out what is less likely than X times the likeliest; 0: off (0)", FIELD(min_p),
     RANGE(0, 1)},
    {"repetition-penalty", CLI_NUMBER, ANSWERS, "Generation", "X",
     "divides the logits of tokens seen before; 1: off (1)", FIELD(repetition_penalty),
     RANGE(0.001, 1000)},
    {"seed", CLI_COUNT, ANSWERS | CLI_BENCH, "Generation", "N", "same seed, same text (0)",
     FIELD(seed)},

    {"device-memory", CLI_SIZE, RUNS | CLI_PLAN | CLI_CHECK_KV, "Memory", "SIZE",
     "hard budget of the device; on the CPU, of working memory (what is available, on a GPU less "
     "a 32nd part and at least 256 MiB)",
     FIELD(device_memory)},
    {"host-memory", CLI_SIZE, RUNS | CLI_PLAN | CLI_INSPECT | CLI_CHECK_KV, "Memory", "SIZE",
     "hard budget of what leaves the device; 0: none (what is available)", FIELD(host_memory)},
    {"disk", CLI_FILE_IN, RUNS | CLI_PLAN | CLI_INSPECT | CLI_CHECK_KV, "Memory", "DIR",
     "a directory on a fast drive, for KV that neither device nor host have room for", FIELD(disk)},
    {"disk-memory", CLI_SIZE, RUNS | CLI_PLAN | CLI_INSPECT | CLI_CHECK_KV, "Memory", "SIZE",
     "hard budget on that disk; 0: none (what is free, less a 16th part)", FIELD(disk_memory)},
    {"disk-write-limit", CLI_SIZE, RUNS | CLI_PLAN | CLI_INSPECT | CLI_CHECK_KV, "Memory", "SIZE",
     "most bytes that are written to it, to the prefix cache and to saved sessions (any number)",
     FIELD(disk_write_limit)},
    {"prefix-cache", CLI_FILE_IN, ANSWERS | CLI_PLAN | CLI_BENCH, "Memory", "DIR",
     "a directory, made if need be, where KV is kept when an answer ends; what begins with the "
     "same tokens, in any process, reads it instead of computing it",
     FIELD(prefix_cache)},
    {"prefix-cache-size", CLI_SIZE, ANSWERS | CLI_PLAN, "Memory", "SIZE",
     "most bytes in it; what was not used for longest goes first (16GiB)",
     FIELD(prefix_cache_size)},
    {"trust-prefix-cache", CLI_FLAG, ANSWERS, "Memory", NULL,
     "also use a prefix cache that other users own or may write to; what they write there becomes "
     "part of answers",
     FIELD(trust_prefix_cache)},
    {"context", CLI_COUNT, ANSWERS | CLI_SCORE | CLI_PLAN, "Memory", "N",
     "most tokens a sequence may have (prompt + --max-new-tokens; a conversation 16384)",
     FIELD(context), RANGE(1, 1e12)},
    {"allow-long-context", CLI_FLAG, ANSWERS | CLI_SCORE | CLI_PLAN, "Memory", NULL,
     "a context may be longer than what the model was made for (max_position_embeddings)",
     FIELD(allow_long_context)},
    {"sessions", CLI_COUNT, PROMPTED, "Memory", "N", "prompts of --prompts that run at a time (4)",
     FIELD(sessions), RANGE(1, 65536)},
    {"kv-dtype", CLI_CHOICE, RUNS | CLI_PLAN | CLI_INSPECT | CLI_CHECK_KV, "Memory", "TYPE",
     "precision of the KV cache; int8, int4 and int8:int4 (keys:values) are of old tokens (as "
     "--compute)",
     FIELD(kv_dtype), .choices = kv_types},
    {"residual-window", CLI_COUNT, RUNS | CLI_PLAN | CLI_INSPECT | CLI_CHECK_KV, "Memory", "TOKENS",
     "newest tokens that stay exact beside int8 and int4 (1024)", FIELD(residual_window),
     RANGE(0, 1e12)},
    {"on-oom", CLI_CHOICE, RUNS | CLI_PLAN | CLI_INSPECT, "Memory", "RUNGS",
     "what memory that does not suffice may change: spill KV to host and disk; then quantize old "
     "KV "
     "to int8 or int4, if --kv-dtype is auto and the model passes its check (spill,quantize)",
     FIELD(on_oom), .choices = rungs},
    {"kv-gate", CLI_CHOICE, RUNS | CLI_PLAN, "Memory", "SWITCH",
     "on: --on-oom quantizes only where the model passes check-kv, which is run if it was not yet; "
     "and --kv-dtype is told where it is known not to pass (on)",
     FIELD(kv_gate), .choices = switches},
    {"prefill-chunk", CLI_COUNT, RUNS | CLI_PLAN, "Memory", "N",
     "tokens of a prompt that pass a layer together (planned)", FIELD(prefill_chunk),
     RANGE(1, 1e9)},
    {"prefetch-slots", CLI_COUNT, RUNS | CLI_PLAN, "Memory", "N",
     "landing buffers of the transfers (planned)", FIELD(prefetch_slots), RANGE(1, 65536)},
    {"prefetch-splits", CLI_COUNT, RUNS | CLI_PLAN, "Memory", "N",
     "times 512 positions of KV that one of them holds (planned)", FIELD(prefetch_splits),
     RANGE(1, 64)},

    {"device", CLI_DEVICE, RUNS | CLI_PLAN | CLI_PROBE | CLI_INSPECT | CLI_CHECK_KV, "Machine",
     "NAME",
     "where to compute: auto takes a GPU that works, else the CPU; cuda:1 is the second GPU (auto)",
     FIELD(device), .choices = devices},
    {"threads", CLI_COUNT, RUNS | CLI_PLAN | CLI_PROBE | CLI_INSPECT | CLI_CHECK_KV, "Machine", "N",
     "compute threads (every core; the fast ones where there are two kinds)", FIELD(threads),
     RANGE(1, 4096)},
    {"compute", CLI_CHOICE, RUNS | CLI_PLAN | CLI_INSPECT | CLI_CHECK_KV, "Machine", "TYPE",
     "f32 is the reference, bf16 the fast one (auto: bf16 for a bf16 model)", FIELD(compute),
     .choices = compute_types},
    {"io", CLI_CHOICE, ANSWERS | CLI_SCORE | CLI_PLAN | CLI_PROBE | CLI_CHECK_KV, "Machine", "HOW",
     "who reads and writes the disk: auto takes io_uring where the system lets it, else threads "
     "(auto)",
     FIELD(io), .choices = io_kinds},
    {"drive-profile", CLI_FILE_OUT, RUNS | CLI_PLAN | CLI_PROBE, "Machine", "FILE",
     "where the limits of drives and of this machine are kept once they are measured "
     "(~/.cache/spillway/drives.json)",
     FIELD(drive_profile)},
    {"kv-profile", CLI_FILE_OUT, RUNS | CLI_PLAN | CLI_CHECK_KV, "Machine", "FILE",
     "where checks of quantized KV are kept (~/.cache/spillway/kv-checks.json)", FIELD(kv_profile)},
    {"redo", CLI_FLAG, CLI_PROBE | CLI_CHECK_KV, "Machine", NULL, "measure again what is known",
     FIELD(redo)},
    {"delay-seed", CLI_COUNT, CLI_GENERATE | CLI_SCORE, "Machine", "N",
     "validation: random delays around every copy and kernel", FIELD(delay_seed)},
    {"serial-kernels", CLI_FLAG, CLI_GENERATE | CLI_SCORE | CLI_BENCH, "Machine", NULL,
     "validation: on a GPU, no kernel starts before the one in front of it is over",
     FIELD(serial_kernels)},

    {"contexts", CLI_COUNTS, CLI_BENCH, "Sweep", "N,N,...", "prompt lengths (128,2048)",
     FIELD(contexts), RANGE(1, 1e9)},
    {"budgets", CLI_SIZES, CLI_BENCH, "Sweep", "SIZE,...",
     "device budgets; 0: what is available (0)", FIELD(budgets)},
    {"repeat", CLI_COUNT, CLI_BENCH, "Sweep", "N",
     "runs of each, interleaved; medians are shown (3)", FIELD(repeat), RANGE(1, 1000)},
    {"decode-tokens", CLI_COUNT, CLI_BENCH, "Sweep", "N", "tokens decoded in each run (16)",
     FIELD(decode_tokens), RANGE(1, 100000)},
    {"random-tokens", CLI_FLAG, CLI_BENCH, "Sweep", NULL,
     "prompts of random tokens (unless --prompt-file is given)", FIELD(random_tokens)},
    {"io", CLI_FLAG, CLI_BENCH, "Sweep", NULL,
     "the disk tier instead, in turn with fio on the filesystem of --disk: its file, decode with "
     "3/4 of the KV on disk, prompts that spill, blocking reads; 5 times",
     FIELD(io_bench)},
    {"prefix", CLI_FLAG, CLI_BENCH, "Sweep", NULL,
     "the time to the first token of a prompt found in a prefix cache instead, in turn with fio on "
     "the same file; in a directory inside --prefix-cache that is removed; --decode-tokens are the "
     "question behind it; 5 times",
     FIELD(prefix_bench)},

    {"json", CLI_FLAG,
     CLI_SCORE | CLI_PLAN | CLI_INSPECT | CLI_TOKENIZE | CLI_PROBE | CLI_CACHE | CLI_CHECK_KV,
     "Output", NULL, "one JSON object", FIELD(json)},
    {"topology", CLI_FLAG, CLI_INSPECT, "Output", NULL,
     "show this machine instead of a model, and where threads would run", FIELD(topology)},
    {"tensors", CLI_FLAG, CLI_INSPECT, "Output", NULL, "list every tensor", FIELD(tensors)},
    {"no-probe", CLI_FLAG, CLI_PLAN, "Output", NULL,
     "do not measure the machine; leaves out predicted tokens/s", FIELD(no_probe)},
    {"ids", CLI_FLAG, CLI_GENERATE, "Output", NULL,
     "print token ids instead of text (--token-ids in a folder without tokenizer.json)",
     FIELD(ids)},
    {"csv", CLI_FILE_OUT, CLI_BENCH, "Output", "FILE", "the table as CSV too; - replaces it",
     FIELD(csv)},
    {"save", CLI_FILE_OUT, CLI_GENERATE, "Output", "FILE",
     "the run as it ended, also by Ctrl-C, a signal or a failure, for --resume; of FILE only what "
     "is new is written; a FILE of another run is refused",
     FIELD(save)},
    {"save-every", CLI_COUNT, CLI_GENERATE, "Output", "N",
     "save after every N new tokens too; after a kill, --resume prints the text since the last "
     "save again",
     FIELD(save_every), RANGE(1, 1e9)},
    {"report", CLI_FILE_OUT, RUNS | CLI_CHECK_KV, "Output", "FILE.json",
     "what was computed, where it lay, what moved", FIELD(report)},
    {"dump-logits", CLI_FILE_OUT, CLI_GENERATE, "Output", "FILE.npy",
     "logits of every generated position, float32 [tokens, vocabulary]", FIELD(dump_logits)},
    {"progress", CLI_CHOICE, RUNS, "Output", "WHEN", "auto: when stderr is a terminal (auto)",
     FIELD(progress), .choices = progress_modes},
    {"quiet", CLI_FLAG, RUNS | CLI_PLAN | CLI_CHECK_KV, "Output", NULL,
     "no progress line and no notes: stderr has errors and warnings only", FIELD(quiet)},
    {.name = NULL},
};
/* clang-format on */

_Static_assert(sizeof cli_rows / sizeof *cli_rows <= CLI_MAX_ROWS, "raise CLI_MAX_ROWS");
