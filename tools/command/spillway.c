/* The `spillway` command: dispatches to one file per subcommand. Text goes to stdout, everything
 * else to stderr; exit 0 done, 1 failed while running, 2 bad usage or input, 130 interrupted. */
#include "tools/command/output/output.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int print_completion(const struct cli_options *o)
{
    return cli_completion(stdout, o->operand);
}

const struct cli_command cli_commands[] = {
    {"generate", CLI_GENERATE, "MODEL", "continue a text, or many together",
     "Continues a text with MODEL, a Hugging Face folder or a GGUF file. The KV cache\n"
     "fills --device-memory first, then --host-memory, then --disk-memory. Where it lies\n"
     "never changes the answer. The text goes to stdout while it is generated.",
     "spillway generate MODEL --prompt 'Once upon a time'\n"
     "spillway generate MODEL --prompt-file book.txt --device-memory 1GiB --report r.json\n"
     "spillway generate MODEL --prompt-file - --temperature 0.8 --seed 7 < notes.txt\n"
     "spillway generate MODEL --prompts questions.jsonl --sessions 8 > answers.jsonl\n"
     "spillway generate MODEL --prompt-file book.txt --save run.spw > answer.txt\n"
     "spillway generate MODEL --resume run.spw --save run.spw >> answer.txt",
     cli_generate},
    {"chat", CLI_CHAT, "MODEL", "a conversation in the terminal, or one answer for a script",
     "Talks with MODEL through its own chat template. A turn computes only its new\n"
     "tokens. Ctrl-C ends the answer, /help lists the commands. With --prompt,\n"
     "--prompt-file or --messages the command writes one answer to stdout and ends.",
     "spillway chat MODEL --system 'You answer in one sentence.'\n"
     "spillway chat MODEL --context 100000 --device-memory 8GiB --disk /mnt/scratch\n"
     "spillway chat MODEL --prompt-file report.txt --prompt 'Who wrote this report?'\n"
     "spillway chat MODEL --messages conversation.json > answer.txt",
     cli_chat},
    {"batch", CLI_BATCH, "MODEL|OUTPUT...",
     "a file of prompts, each answered once; continues after a kill",
     "Answers the lines of --input with MODEL, many at the same time, and writes one\n"
     "line for each to --output. The lines are those of OpenAI's batch files, or\n"
     "shorter ones. If the command is interrupted or killed, the same command\n"
     "continues: no answer is lost, and none is written twice. With --status the operands\n"
     "are outputs, and the command says what they lack.",
     "spillway batch MODEL --input questions.jsonl --output answers.jsonl\n"
     "spillway batch MODEL --input questions.jsonl --output part2.jsonl --shard 2/8\n"
     "spillway batch --status part*.jsonl",
     cli_batch},
    {"summarize", CLI_SUMMARIZE, "MODEL PATH...",
     "a summary of each document; continues after a kill",
     "Summarizes documents with MODEL, many at the same time: files, and all\n"
     "files of folders. A document that the model's context and the budgets hold is\n"
     "read as a whole; a longer one in parts, whose summaries are merged. If the\n"
     "command is interrupted or killed, the same command continues: no summary is\n"
     "lost, not even that of a part, and none is written twice.",
     "spillway summarize MODEL reports/ --output summaries.jsonl\n"
     "spillway summarize MODEL papers/ --out-dir summaries --length short\n"
     "spillway summarize MODEL book.epub --output book.jsonl --strategy map-reduce \\\n"
     "    --language German --focus 'names of people'",
     cli_summarize},
    {"score", CLI_SCORE, "MODEL", "log-likelihood and perplexity of a text",
     "Adds up the log-probabilities of the tokens of a text. Each token is scored with\n"
     "all tokens before it as its context.",
     "spillway score MODEL --text-file chapter.txt\n"
     "spillway score MODEL --text-file chapter.txt --compute f32 --json",
     cli_score},
    {"plan", CLI_PLAN, "MODEL", "the plan of a run: memory, bytes, speed; loads nothing",
     "Shows what `generate` with the same options would do: in which memory weights and\n"
     "KV would be, how many bytes each step would move, how fast the run would be, and\n"
     "the smallest budgets that work. Loads nothing.",
     "spillway plan MODEL --context 200000 --device-memory 4GiB\n"
     "spillway plan MODEL --prompt-file book.txt --device-memory 64MiB --json",
     cli_plan},
    {"inspect", CLI_INSPECT, "[MODEL]", "facts about a model, or about this machine",
     "Shows the shape of the model, its tensors and their bytes, its tokenizer, and the\n"
     "bytes that a token of context takes. Shows for each layer which cache a run with\n"
     "the same options would use, and why. With --topology it shows this machine\n"
     "instead: the processors and the memory that a run may use, and where its threads\n"
     "would run. With --self-test the device computes products whose bits are known; a GPU\n"
     "that this program has never seen may be checked so, after an update of its driver too.",
     "spillway inspect MODEL\nspillway inspect MODEL --tensors --json\n"
     "spillway inspect MODEL --kv-dtype f16 --disk /scratch\n"
     "spillway inspect --topology\nspillway inspect --topology --threads 4 --json\n"
     "spillway inspect --self-test --device cuda",
     cli_inspect},
    {"tokenize", CLI_TOKENIZE, "MODEL", "text to token ids and back",
     "Prints the token ids of a text, or with --decode the text of token ids.",
     "spillway tokenize MODEL --text 'Hello there'\n"
     "spillway tokenize MODEL --text-file book.txt > ids.txt\n"
     "spillway tokenize MODEL --decode --token-ids ids.txt",
     cli_tokenize},
    {"bench", CLI_BENCH, "MODEL", "speed against the machine's own limits",
     "Runs prompts of each length under each budget. Shows each measured number beside\n"
     "the limit of this machine, which is measured in the same run.",
     "spillway bench MODEL --contexts 128,2048,16384\n"
     "spillway bench MODEL --contexts 16384 --budgets 0,512MiB --report speed.json",
     cli_bench},
    {"probe", CLI_PROBE, "[DIR]", "how fast a drive and this machine are",
     "Shows the measured limits that plans use: those of the drive behind DIR (without\n"
     "DIR, of the current directory) and those of this machine. Limits that are not\n"
     "known are measured and stored for later runs. Measuring takes five seconds and\n"
     "writes at most 256 MiB to an unnamed temporary file.",
     "spillway probe /mnt/scratch\nspillway probe /mnt/scratch --redo --json", cli_probe},
    {"cache", CLI_CACHE, "ls|verify|prune DIR", "list, verify or shrink a prefix cache",
     "ls lists the packs (files) of the prefix cache in DIR, least recently used first:\n"
     "the tokens that a pack covers, its bytes, and the first digits of the fingerprint\n"
     "of its model and KV precision. verify reads all packs, names those that are\n"
     "damaged, and exits with 1 if there are any. prune removes damaged packs, and then\n"
     "the least recently used packs until at most --size is left. Other processes may\n"
     "use DIR at the same time.",
     "spillway cache ls ~/.cache/spillway/prefixes\n"
     "spillway cache verify ~/.cache/spillway/prefixes --json\n"
     "spillway cache prune ~/.cache/spillway/prefixes --size 20GiB",
     cli_cache},
    {"check-kv", CLI_CHECK_KV, "MODEL", "how much quantized KV changes a model's predictions",
     "Runs a short text through the model with exact and with quantized KV, shows how\n"
     "much the predictions differ, and which formats pass. The result is stored for later\n"
     "runs. KL is the divergence of the next-token distributions, in nats. 'if sure'\n"
     "counts only positions where the exact model gives its first choice at least twice\n"
     "the probability of its second.",
     "spillway check-kv MODEL\nspillway check-kv MODEL --kv-dtype int4 --redo --json",
     cli_check_kv},
    {"quantize", CLI_QUANTIZE, "MODEL OUT.gguf", "a model folder as a quantized GGUF file",
     "Writes the model in folder MODEL (F32, F16 or BF16) to the GGUF file OUT.gguf, with\n"
     "matrices of --type, its tokenizer and its chat template. Shows the type, the bytes\n"
     "and the error of each tensor. With --text-file it also shows the loss of MODEL and\n"
     "of OUT.gguf on a text, as `spillway score` reports it. It does not replace an old\n"
     "OUT.gguf: remove that first.",
     "spillway quantize MODEL model-q8_0.gguf --type q8_0 --text-file chapter.txt\n"
     "spillway quantize MODEL model-q4_0.gguf --type q4_0 --json > errors.json",
     cli_quantize},
    {"serve", CLI_SERVE, "MODEL", "a server for OpenAI's and Anthropic's clients",
     "Answers requests over HTTP: /v1/chat/completions, /v1/completions, /v1/responses,\n"
     "/v1/messages, /v1/models, /tokenize, /health, /metrics. Requests run together, and\n"
     "each gets the answer that it would get alone. A line on stderr says when the server\n"
     "is ready. SIGTERM and Ctrl-C end it. docs/serve.md has the settings of clients.",
     "spillway serve MODEL\n"
     "spillway serve MODEL --port 9000 --context 65536 --prefix-cache ~/prefixes\n"
     "spillway serve MODEL --host 0.0.0.0 --api-key-file keys.txt",
     cli_serve},
    {"completion", CLI_COMPLETION, "SHELL", "shell completion for bash, zsh or fish",
     "Prints a completion script for SHELL: bash, zsh or fish.",
     "spillway completion bash > ~/.local/share/bash-completion/completions/spillway\n"
     "spillway completion zsh > ~/.zfunc/_spillway\n"
     "spillway completion fish > ~/.config/fish/completions/spillway.fish",
     print_completion},
    {.name = NULL},
};

static void write_version(FILE *to)
{
    fprintf(to, "spillway %s\n", spw_version());
}

/* What the command prints without a subcommand. */
static const struct {
    const char *name;
    void (*write)(FILE *to);
} pages[] = {
    {"--help", cli_help_commands}, {"help", cli_help_commands}, {"-h", cli_help_commands},
    {"--version", write_version},  {"--man", cli_man},          {"--options", cli_options_page}};
enum { N_PAGES = sizeof pages / sizeof *pages };

static int refuse_command(const char *name)
{
    const char *names[24];
    size_t n = 0;
    for (size_t i = 0; i < N_PAGES; i++)
        names[n++] = pages[i].name;
    for (const struct cli_command *c = cli_commands; c->name; c++)
        names[n++] = c->name;
    const char *nearest = cli_nearest(name, names, n);
    if (nearest)
        return cli_fail(CLI_REFUSED, "unknown command '%s'; did you mean '%s'?", name, nearest);
    return cli_fail(CLI_REFUSED, "unknown command '%s'; see 'spillway --help'", name);
}

/* Says how to get a model where MODEL is the name of one on the Hub: "OWNER/NAME". */
static int check_model(const struct cli_options *o)
{
    const char *slash = o->operand ? strchr(o->operand, '/') : NULL;
    if (!slash || strncmp(o->command->operand, "MODEL", 5) != 0 || o->status ||
        access(o->operand, F_OK) == 0)
        return 0;
    if (slash == o->operand || !slash[1] || strchr(slash + 1, '/') || strchr(".~", *o->operand))
        return 0;
    return cli_fail(CLI_REFUSED,
                    "%s: found no such file or folder; if it is a model of the Hugging Face Hub, "
                    "'hf download %s --local-dir %s' gets it",
                    o->operand, o->operand, slash + 1);
}

/* Whether stdout is a pipe without a reader. */
static bool nobody_reads(void)
{
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
}

/* Flushes stdout; a failed write makes the run fail. An earlier failed write has left no errno. */
static int finish(int code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    if (code == CLI_DONE && !nobody_reads())
        cli_fail(CLI_FAILED, "stdout: %s",
                 errno ? strerror(errno) : "some output could not be written");
    return code == CLI_DONE ? CLI_FAILED : code;
}

/* If the caller closed a standard stream, the next file that opens would get its number, and the
 * text. Opens /dev/null for the stream instead. */
static void reserve_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) <
            0) /* for the opposite direction: using the stream stays an error */
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

static int run(int argc, char **argv)
{
    setenv("HWLOC_HIDE_ERRORS", "2", 0); /* no hwloc messages on a machine without /sys */
    if (argc < 2) {
        cli_help_commands(stderr);
        return CLI_REFUSED;
    }
    const char *name = argv[1];
    const struct cli_command *help = NULL;
    if (strcmp(name, "help") == 0 && argc > 2 && !(help = cli_find_command(argv[2])))
        return refuse_command(argv[2]);
    if (help) {
        cli_help(stdout, help, argc > 3 && strcmp(argv[3], "all") == 0);
        return finish(CLI_DONE);
    }
    if (strcmp(name, "--complete") == 0) {
        cli_complete(stdout, argc - 2, argv + 2);
        return finish(CLI_DONE);
    }
    for (size_t i = 0; i < N_PAGES; i++) {
        if (strcmp(pages[i].name, name) == 0) {
            pages[i].write(stdout);
            return finish(CLI_DONE);
        }
    }
    const struct cli_command *command = cli_find_command(name);
    if (!command)
        return refuse_command(name);
    struct cli_options options;
    int code = cli_parse(&options, command, argc - 1, argv + 1);
    if (command->bit & (CLI_GENERATE | CLI_CHAT | CLI_SCORE | CLI_BENCH | CLI_BATCH |
                        CLI_SUMMARIZE | CLI_QUANTIZE))
        cli_catch_interrupt();
    if (options.quiet)
        options.progress = CLI_PROGRESS_NEVER;
    cli_set_quiet(options.quiet);
    cli_name_context(&options);
    if (code == 0)
        code = check_model(&options);
    if (code == 0)
        code = cli_outputs_check(&options);
    if (code == 0)
        code = command->run(&options);
    else if (code == CLI_HELP_SHOWN)
        code = CLI_DONE;
    cli_options_free(&options);
    return finish(code);
}

/* ---- the stack ---- */

/* STACK_LEAST: the stack that deeply nested JSON and templates need. STACK_BYTES: the stack of our
 * own thread. */
enum { STACK_LEAST = 1 << 20, STACK_BYTES = 8 << 20 };

struct call {
    int argc;
    char **argv;
    int code;
};

static void *run_call(void *argument)
{
    struct call *c = argument;
    c->code = run(c->argc, c->argv);
    return NULL;
}

/* With a small `ulimit -s` the command runs on a thread with a larger stack. That thread gets the
 * signals of this one. */
static int run_on_thread(struct call *c)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all;
    int rc = pthread_attr_init(&attributes);
    if (!rc)
        rc = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    if (!rc)
        rc = pthread_create(&thread, &attributes, run_call, c);
    if (rc)
        return cli_fail(CLI_FAILED,
                        "the stack is limited to less than 1 MiB (ulimit -s), and a thread with a "
                        "larger one was refused: %s",
                        strerror(rc));
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    pthread_join(thread, NULL);
    return c->code;
}

int main(int argc, char **argv)
{
    struct call call = {argc, argv, CLI_DONE};
    struct rlimit stack;
    reserve_standard_streams();
    cli_ignore_write_signals();
    if (getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur < STACK_LEAST)
        return run_on_thread(&call);
    return run(argc, argv);
}
