/* `spillway serve`: a model behind HTTP. The order of its life:
 *
 *     listen             from now on /health answers, with 503
 *     open the model     tokenizer and chat template, which all threads read
 *     run the engine     on this thread, until a signal; when it is open, the server is ready
 *     stop to listen, let the engine end what runs, send the last bytes, close
 *
 * SIGTERM, SIGINT and SIGHUP end the server; a second one kills the process. While the model is
 * loaded there is nothing to end: the process exits. */
#include "tools/command/serve/serve.h"

#include "tools/command/engine.h"
#include "tools/command/serve/work.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* ---- signals ---- */

static struct serve_work *_Atomic stoppable; /* of this process; NULL: it is not ready */

static void on_signal(int number)
{
    struct serve_work *w = stoppable;
    (void)number;
    if (!w)
        _exit(CLI_DONE);
    serve_work_stop(w);
}

static void catch_signals(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    struct sigaction now;
    const struct sigaction stop = {.sa_handler = on_signal,
                                   .sa_flags = (int)(SA_RESETHAND | (unsigned)SA_RESTART)};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN) /* nohup */
            sigaction(numbers[i], &stop, NULL);
}

/* ---- parts ---- */

/* Connections are files, too. */
static void raise_file_limit(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

/* The last part of the model's path, or --model-name. */
static void name_model(struct serve_server *s)
{
    const char *path = s->o->operand;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t begin = n;
    while (begin && path[begin - 1] != '/')
        begin--;
    snprintf(s->name, sizeof s->name, "%.*s", (int)(n - begin), path + begin);
    if (s->o->model_name)
        snprintf(s->name, sizeof s->name, "%s", s->o->model_name);
}

static int read_access(struct serve_server *s)
{
    const struct cli_options *o = s->o;
    s->access = (struct serve_access){.on_loopback = serve_is_loopback(o->host),
                                      .hosts = o->allowed_hosts,
                                      .origins = o->allowed_origins};
    if (o->api_key_file)
        return serve_access_read_keys(&s->access, o->api_key_file);
    if (!s->access.on_loopback)
        return cli_fail(CLI_REFUSED,
                        "--host %s: other machines may reach this address, so the server needs a "
                        "key: give --api-key-file",
                        o->host);
    return 0;
}

static void left(void *context)
{
    struct serve_server *s = context;
    serve_work_wake(s->work);
}

static int listen_to(struct serve_server *s, struct serve_http **out)
{
    struct spw_error err = {0};
    const struct cli_options *o = s->o;
    const struct serve_http_options options = {
        .host = o->host,
        .port = (uint16_t)o->port,
        .most_body_bytes = o->max_body,
        .most_connections = (uint32_t)o->max_connections,
        .idle_seconds = 60,
        .access = &s->access,
        .answer = serve_route,
        .refuse = serve_route_refusal,
        .is_public = serve_route_is_public,
        .left = left,
        .context = s,
    };
    const int rc = serve_http_open(out, &options, &err);
    return rc ? cli_fail_error(rc, &err, true) : 0;
}

static int open_model(struct serve_server *s, struct cli_options *o)
{
    int code = cli_model_open(&s->model, o->operand, true);
    if (!code)
        code = cli_take_search(o, &s->model);
    if (!code)
        code = cli_refuse_audio(&s->model);
    if (!code)
        code = cli_check_answers(o, &s->model);
    if (code)
        return code;
    s->reader = (struct request_reader){.o = o, .model = &s->model, .folder = "."};
    return serve_prepare(&s->reader) ? cli_fail(CLI_FAILED, "out of memory") : 0;
}

/* ---- the command ---- */

struct address {
    struct serve_server *server;
    struct serve_http *http;
};

/* The engine's thread: it is open. */
static void say_ready(void *context)
{
    const struct address *a = context;
    const char *host = a->server->o->host;
    const bool ipv6 = strchr(host, ':');
    a->server->is_ready = true;
    stoppable = a->server->work;
    cli_note("%s on http://%s%s%s:%u", a->server->name, ipv6 ? "[" : "", host, ipv6 ? "]" : "",
             serve_http_port(a->http));
    fputs("Application startup complete\n", stderr);
}

static int answer_clients(struct serve_server *s, struct cli_options *o, struct serve_http *http)
{
    struct address address = {s, http};
    const struct serve_work_options options = {
        .o = s->o,
        .model = &s->model,
        .max_gap_seconds = s->o->max_gap,
        .most_waiting = (uint32_t)s->o->max_queue,
        .metrics = s->metrics,
        .ready = say_ready,
        .context = &address,
    };
    int code = open_model(s, o);
    if (!code && serve_work_open(&s->work, &options))
        code = cli_fail(CLI_FAILED, "out of memory");
    if (code)
        return code;
    code = serve_work_run(s->work);
    serve_http_stop(http);
    return code;
}

int cli_serve(const struct cli_options *given)
{
    struct cli_options options = *given; /* the files of the model may ask for a search */
    const struct cli_options *o = &options;
    struct serve_http *http = NULL;
    struct serve_server s = {.o = o, .created = time(NULL)};
    catch_signals();
    name_model(&s);
    raise_file_limit();
    int code = read_access(&s);
    if (!code && !(s.metrics = serve_metrics_open()))
        code = cli_fail(CLI_FAILED, "out of memory");
    if (!code)
        code = listen_to(&s, &http);
    if (!code)
        code = answer_clients(&s, &options, http);
    serve_http_close(http); /* its threads use what follows */
    stoppable = NULL;
    serve_work_close(s.work);
    request_reader_close(&s.reader);
    cli_model_close(&s.model);
    serve_metrics_close(s.metrics);
    serve_access_free(&s.access);
    return code;
}
