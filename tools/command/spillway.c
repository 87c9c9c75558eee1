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

static int cli_complete(const struct cli_options *o)
{
    return cli_completion(stdout, o->operand);
}

const struct cli_command cli_commands[] = {
    {"generate", CLI_GENERATE, "MODEL", "continue a text, or many together",
     "Continues a text with the model in folder MODEL (config.json, *.safetensors,\n"
     "tokenizer.json). The KV cache lies on the device as far as --device-memory\n"
     "reaches and in host memory as far as --host-memory does; where it lies never\n"
     "changes the answer. The text goes to stdout as it is made.",
     "spillway generate MODEL --prompt 'Once upon a time'\n"
     "spillway generate MODEL --prompt-file book.txt --device-memory 1GiB --report r.json\n"
     "spillway generate MODEL --prompt-file - --temperature 0.8 --seed 7 < notes.txt\n"
     "spillway generate MODEL --prompts questions.jsonl --sessions 8 > answers.jsonl\n"
     "spillway generate MODEL --prompt-file book.txt --save run.spw > answer.txt\n"
     "spillway generate MODEL --resume run.spw --save run.spw >> answer.txt",
     cli_generate},
    {"chat", CLI_CHAT, "MODEL", "a conversation in the terminal, or one answer for a script",
     "Talks with the model in folder MODEL through the folder's own chat template. Each\n"
     "turn computes only what is new. Ctrl-C ends the answer, /help lists the commands.\n"
     "With --messages one answer goes to stdout and the command ends.",
     "spillway chat MODEL --system 'You answer in one sentence.'\n"
     "spillway chat MODEL --context 100000 --device-memory 8GiB --disk /mnt/scratch\n"
     "spillway chat MODEL --messages conversation.json > answer.txt",
     cli_chat},
    {"score", CLI_SCORE, "MODEL", "log-likelihood and perplexity of a text",
     "Adds up the log-probability of every token of a text given all tokens before\n"
     "it, the whole text in one context.",
     "spillway score MODEL --text-file chapter.txt\n"
     "spillway score MODEL --text-file chapter.txt --compute f32 --json",
     cli_score},
    {"plan", CLI_PLAN, "MODEL", "what would lie where, before anything is loaded",
     "Says what `generate` with the same options would keep where, what each step\n"
     "would move and how fast it would be, and the smallest budgets that would do.\n"
     "Nothing is loaded.",
     "spillway plan MODEL --context 200000 --device-memory 4GiB\n"
     "spillway plan MODEL --prompt-file book.txt --device-memory 64MiB --json",
     cli_plan},
    {"inspect", CLI_INSPECT, "[MODEL]", "facts about a model folder, or about this machine",
     "Shows the shape of the model, its tensors and their bytes, its tokenizer, and\n"
     "what a token of context costs; of each layer's cache what a run with the same\n"
     "options would use, and why. With --topology instead: this machine's cores,\n"
     "memory, GPUs and drives, what of them a run may use, and where its threads\n"
     "would be.",
     "spillway inspect MODEL\nspillway inspect MODEL --tensors --json\n"
     "spillway inspect MODEL --kv-dtype f16 --disk /scratch\n"
     "spillway inspect --topology\nspillway inspect --topology --threads 4 --json",
     cli_inspect},
    {"tokenize", CLI_TOKENIZE, "MODEL", "text to token ids and back",
     "Prints the ids of a text, or with --decode the text of ids.",
     "spillway tokenize MODEL --text 'Hello there'\n"
     "spillway tokenize MODEL --text-file book.txt > ids.txt\n"
     "spillway tokenize MODEL --decode --token-ids ids.txt",
     cli_tokenize},
    {"bench", CLI_BENCH, "MODEL", "speed against the machine's own limits",
     "Runs prompts of each length under each budget and sets every number beside\n"
     "what this machine can do at most, measured in the same run.",
     "spillway bench MODEL --contexts 128,2048,16384\n"
     "spillway bench MODEL --contexts 16384 --budgets 0,512MiB --csv speed.csv",
     cli_bench},
    {"probe", CLI_PROBE, "[DIR]", "how fast a drive and this machine are",
     "Shows the limits that plans are made with: of the drive behind DIR (or behind the\n"
     "current directory) and of this machine. What is not known yet is measured, which\n"
     "takes two seconds and writes at most 256 MiB to a file without a name, and is\n"
     "kept for later runs.",
     "spillway probe /mnt/scratch\nspillway probe /mnt/scratch --redo --json", cli_probe},
    {"cache", CLI_CACHE, "ls|verify|prune DIR", "what is in a prefix cache, and less of it",
     "ls lists the packs of the prefix cache in DIR, least recently used first: which\n"
     "tokens they cover, their bytes, and the beginning of the fingerprint of model and\n"
     "KV precision that they belong to. verify reads all of them, says what is damaged,\n"
     "and ends with 1 if something is. prune removes what is damaged, and then the least\n"
     "recently used until --size is left. All of it beside processes that use DIR.",
     "spillway cache ls ~/.cache/spillway/prefixes\n"
     "spillway cache verify ~/.cache/spillway/prefixes --json\n"
     "spillway cache prune ~/.cache/spillway/prefixes --size 20GiB",
     cli_cache},
    {"check-kv", CLI_CHECK_KV, "MODEL", "what quantized KV does to a model's answers",
     "Runs a short text through the model with exact and with quantized KV, and says\n"
     "how far the predictions are apart and which formats pass. The result is kept\n"
     "for later runs. KL is the divergence of the next-token distribution, in nats;\n"
     "'if sure' counts tokens that the exact model gives twice the next one's\n"
     "probability.",
     "spillway check-kv MODEL\nspillway check-kv MODEL --kv-dtype int4 --redo --json",
     cli_check_kv},
    {"completion", CLI_COMPLETION, "SHELL", "shell completion for bash, zsh or fish",
     "Prints a completion script for SHELL: bash, zsh or fish.",
     "spillway completion bash > ~/.local/share/bash-completion/completions/spillway\n"
     "spillway completion zsh > ~/.zfunc/_spillway\n"
     "spillway completion fish > ~/.config/fish/completions/spillway.fish",
     cli_complete},
    {.name = NULL},
};

static const struct cli_command *find_command(const char *name)
{
    for (const struct cli_command *c = cli_commands; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

static int refuse_command(const char *name)
{
    const char *names[16];
    size_t n = 0;
    for (const struct cli_command *c = cli_commands; c->name; c++)
        names[n++] = c->name;
    const char *nearest = cli_nearest(name, names, n);
    if (nearest)
        return cli_fail(CLI_REFUSED, "unknown command '%s'; did you mean '%s'?", name, nearest);
    return cli_fail(CLI_REFUSED, "unknown command '%s'; see 'spillway --help'", name);
}

/* Whether stdout is a pipe that nobody reads any more. */
static bool nobody_reads(void)
{
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
}

/* What is still in the buffer of stdout must arrive, or the run has failed. What failed earlier,
 * when a buffer was full, has left no errno. */
static int finish(int code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    if (code == CLI_DONE && !nobody_reads())
        cli_fail(CLI_FAILED, "stdout: %s", errno ? strerror(errno) : "not all could be written");
    return code == CLI_DONE ? CLI_FAILED : code;
}

/* A descriptor that was closed would go to the next file that is opened, and the text into it. */
static void reserve_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0) /* the other way round: to use it stays an error */
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

static int run(int argc, char **argv)
{
    setenv("HWLOC_HIDE_ERRORS", "2", 0); /* a machine without /sys runs too */
    if (argc < 2) {
        cli_help_all(stderr);
        return CLI_REFUSED;
    }
    const char *name = argv[1];
    const struct cli_command *help = NULL;
    if (strcmp(name, "help") == 0 && argc > 2 && !(help = find_command(argv[2])))
        return refuse_command(argv[2]);
    if (help) {
        cli_help(stdout, help);
        return finish(CLI_DONE);
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        cli_help_all(stdout);
        return finish(CLI_DONE);
    }
    if (strcmp(name, "--version") == 0) {
        printf("spillway %s\n", SPW_VERSION);
        return finish(CLI_DONE);
    }
    if (strcmp(name, "--man") == 0) {
        cli_man(stdout);
        return finish(CLI_DONE);
    }
    const struct cli_command *command = find_command(name);
    if (!command)
        return refuse_command(name);
    struct cli_options options;
    int code = cli_parse(&options, command, argc - 1, argv + 1);
    if (command->bit & (CLI_GENERATE | CLI_CHAT | CLI_SCORE | CLI_BENCH))
        cli_catch_interrupt();
    if (options.quiet)
        options.progress = CLI_PROGRESS_NEVER;
    cli_set_quiet(options.quiet);
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

/* The least that deeply nested JSON and templates need, and what a thread of our own gets. */
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

/* Under a small `ulimit -s` the command runs on a thread that has a larger stack. Signals go to
 * that thread, as they would go to this one. */
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
