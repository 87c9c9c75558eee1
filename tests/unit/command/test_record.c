/* Lines of output: answers and errors in all forms, from results that this test makes up.
 *
 *   test_record --print   prints such lines: for tests/oracle/openai_records.py */
#include "tests/job_world.h"
#include "tests/json_text.h"
#include "tools/command/request/record.h"

static const double logprobs[] = {-0.25, -1.5, -20000};
static const struct spw_token_logprob top[] = {{'a' - '!', -0.25}, {'b' - '!', -2}, {94, -1.25},
                                               {'c' - '!', -1.5},  {95, -1},        {95, -20000}};

/* Of the prompt a, the two halves of é, a. */
static const struct spw_token_logprob prompt_top[] = {{0, 0},
                                                      {0, 0},
                                                      {94, -0.5},
                                                      {'a' - '!', -1},
                                                      {'c' - '!', -0.125},
                                                      {'b' - '!', -2},
                                                      {'b' - '!', -0.5},
                                                      {'a' - '!', -1}};

static struct request_names names(void)
{
    return (struct request_names){
        .model = "folder", .created = 1700000000, .tokenizer = model.tokenizer};
}

static void copy(void *to, const void *from, size_t bytes)
{
    void *made = spw_alloc(bytes);
    memcpy(made, from, bytes);
    memcpy(to, &made, sizeof made);
}

/* The answer "ab" + é: tokens a, c and the two halves of é, or as many of them as `n`. */
static void answer(struct request *x, size_t i, const char *text, size_t n, enum spw_finish finish)
{
    static const int32_t tokens[] = {'a' - '!', 94, 95};
    static const double prompt[] = {0, -0.5, -0.75, -1, -2, -3, -4, -5};
    struct request_choice *c = &x->choices[i];
    c->has_ended = true;
    spw_text_add(&c->text, text, strlen(text));
    c->result = (struct spw_result){
        .n_tokens = n, .finish = finish, .logits_hash = 0xabcd + i, .n_reused = 1 + i};
    copy(&c->result.tokens, tokens, n * sizeof *tokens);
    if (!x->logprobs)
        return;
    copy(&c->result.logprobs, logprobs, n * sizeof *logprobs);
    c->result.n_top_logprobs = x->n_top_logprobs;
    copy(&c->result.top_logprobs, top, n * 2 * sizeof *top);
    if (x->echo)
        copy(&c->result.prompt_logprobs, prompt, sizeof prompt);
    if (x->echo && x->n_top_logprobs)
        copy(&c->result.prompt_top_logprobs, prompt_top, sizeof prompt_top);
}

/* The item of a line; the caller fills the answers. */
static struct request item(const char *line)
{
    struct request x;
    struct request_refusal why;
    line = json_quoted(line);
    int rc = request_parse(&x, &reader, line, strlen(line), 7, &why);
    if (!rc)
        rc = request_encode(&x, &reader, &why);
    CHECK_MSG(rc == 0, "%s: %s", line, why.message);
    return x;
}

#define CHAT(keys)                                                                                 \
    "{'custom_id': 'q\\n', 'url': '/v1/chat/completions', 'body': {'model': 'm', "                 \
    "'messages': [{'role': 'user', 'content': 'ab'}], 'seed': 5" keys "}}"
#define COMPLETION(keys)                                                                           \
    "{'custom_id': 'q', 'url': '/v1/completions', 'body': {'seed': 5, " keys "}}"

/* Compares one line with JSON (with ' in place of "), in the order of its keys; frees both. Names
 * are as long as a hash, and stand for '#' in `expected`. */
static void expect(json_t *line, struct request *x, const char *expected)
{
    char *text = json_dumps(line, JSON_COMPACT), *at;
    static const char *const named[] = {"batch_req_", "\"req_", "cmpl-"};
    for (size_t i = 0; i < 3 && text; i++)
        if ((at = strstr(text, named[i]))) {
            at += strlen(named[i]);
            CHECK(strspn(at, "0123456789abcdef") == 16);
            memmove(at + 1, at + 16, strlen(at + 16) + 1);
            *at = '#';
        }
    expected = json_quoted(expected);
    CHECK_MSG(text && !strcmp(text, expected), "\n%s\n%s", text, expected);
    free(text);
    json_decref(line);
    request_free(x);
}

static json_t *record(const struct request *x)
{
    const struct request_names n = names();
    return request_record(x, &n);
}

static void check_short(void)
{
    struct request x = item("{'id': [1], 'prompt': 'abc'}");
    answer(&x, 0, "a", 1, SPW_FINISH_EOS);
    expect(record(&x), &x,
           "{'id':[1],'text':'a','n_prompt':3,'n_generated':1,'finish':'eos','logits_hash':'"
           "000000000000abcd','tokens':[64]}");
    x = item("{'prompt': 'abc', 'n': 2}");
    answer(&x, 0, "a", 1, SPW_FINISH_STOP);
    answer(&x, 1, "", 0, SPW_FINISH_LENGTH);
    spw_free(x.choices[1].text.text);
    x.choices[1].text = (struct spw_text){0};
    expect(record(&x), &x,
           "{'line':7,'choices':[{'index':0,'text':'a','n_prompt':3,'n_generated':1,'finish':'stop'"
           ",'logits_hash':'000000000000abcd','tokens':[64]},{'index':1,'text':'','n_prompt':3,'n_"
           "generated':0,'finish':'length','logits_hash':'000000000000abce','tokens':[]}]}");
}

static void check_chat(void)
{
    struct request x = item(CHAT(""));
    answer(&x, 0, "a\xc3\xa9", 3, SPW_FINISH_LENGTH);
    expect(record(&x), &x,
           "{'id':'batch_req_#','custom_id':'q\\n','response':{'status_code':200,'request_id':'req_"
           "#','body':{'id':'chatcmpl-#','object':'chat.completion','created':1700000000,'model':'"
           "m','choices':[{'index':0,'message':{'role':'assistant','content':'a\xc3\xa9','refusal':"
           "null},'logprobs':null,'finish_reason':'length'}],'usage':{'prompt_tokens':12,'"
           "completion_tokens':3,'total_tokens':15,'prompt_tokens_details':{'cached_tokens':1},'"
           "completion_tokens_details':{'reasoning_tokens':0}},'system_fingerprint':null,'spillway'"
           ":{'seed':5,'logits_hash':['000000000000abcd']}}},'error':null}");
}

static void expect_logprobs(struct request *x, const char *expected)
{
    json_t *line = record(x);
    json_t *choice = json_array_get(
        json_object_get(json_object_get(json_object_get(line, "response"), "body"), "choices"), 0);
    expect(json_incref(json_object_get(choice, "logprobs")), x, expected);
    json_decref(line);
}

static void check_chat_logprobs(void)
{
    struct request x = item(CHAT(", 'logprobs': true, 'top_logprobs': 2"));
    answer(&x, 0, "a\xc3\xa9", 3, SPW_FINISH_EOS);
    expect_logprobs(
        &x, "{'content':[{'token':'a','logprob':-0.25,'bytes':[97],'top_logprobs':[{'token':'a','"
            "logprob':-0.25,'bytes':[97]},{'token':'b','logprob':-2.0,'bytes':[98]}]},{'token':'"
            "\\\\xc3','logprob':-1.5,'bytes':[195],'top_logprobs':[{'token':'\\\\xc3','logprob':-1."
            "25,'bytes':[195]},{'token':'c','logprob':-1.5,'bytes':[99]}]},{'token':'\\\\xa9','"
            "logprob':-9999.0,'bytes':[169],'top_logprobs':[{'token':'\\\\xa9','logprob':-1.0,'"
            "bytes':[169]},{'token':'\\\\xa9','logprob':-9999.0,'bytes':[169]}]}],'refusal':null}");
}

static void check_completion(void)
{
    struct request x = item(COMPLETION("'prompt': ['abc', [66, 67]], 'n': 2, 'echo': true"));
    for (size_t i = 0; i < 4; i++)
        answer(&x, i, i ? "!" : "", i, i % 2 ? SPW_FINISH_STOP : SPW_FINISH_LENGTH);
    expect(record(&x), &x,
           "{'id':'batch_req_#','custom_id':'q','response':{'status_code':200,'request_id':'req_#',"
           "'body':{'id':'cmpl-#','object':'text_completion','created':1700000000,'model':'folder',"
           "'choices':[{'index':0,'text':'abc','logprobs':null,'finish_reason':'length'},{'index':"
           "1,'text':'abc!','logprobs':null,'finish_reason':'stop'},{'index':2,'text':'cd!','"
           "logprobs':null,'finish_reason':'length'},{'index':3,'text':'cd!','logprobs':null,'"
           "finish_reason':'stop'}],'usage':{'prompt_tokens':5,'completion_tokens':6,'total_tokens'"
           ":11,'prompt_tokens_details':{'cached_tokens':3}},'system_fingerprint':null,'spillway':{"
           "'seed':5,'logits_hash':['000000000000abcd','000000000000abce','000000000000abcf','"
           "000000000000abd0']}}},'error':null}");
}

static void check_completion_logprobs(void)
{
    struct request x = item(COMPLETION("'prompt': 'ab', 'logprobs': 2"));
    answer(&x, 0, "a\xc3\xa9", 3, SPW_FINISH_LENGTH);
    expect_logprobs(&x, "{'tokens':['a','bytes:\\\\xc3','bytes:\\\\xa9'],'token_logprobs':[-0.25,-"
                        "1.5,-9999.0],'top_logprobs':[{'b':-2.0,'a':-0.25},{'c':-1.5,'bytes:"
                        "\\\\xc3':-1.5},{'bytes:\\\\xa9':-9999.0}],'text_offset':[0,1,1]}");
    x = item(COMPLETION("'prompt': [64, 94, 95, 64], 'logprobs': 0, 'echo': true"));
    answer(&x, 0, "a", 1, SPW_FINISH_LENGTH);
    expect_logprobs(&x,
                    "{'tokens':['a','bytes:\\\\xc3','bytes:\\\\xa9','a','a'],'token_logprobs':["
                    "null,-0.5,-0.75,-1.0,-0.25],'top_logprobs':null,'text_offset':[0,1,1,2,3]}");
    x = item(COMPLETION("'prompt': [64, 94, 95, 64], 'logprobs': 2, 'echo': true"));
    answer(&x, 0, "a", 1, SPW_FINISH_LENGTH);
    expect_logprobs(&x, "{'tokens':['a','bytes:\\\\xc3','bytes:\\\\xa9','a','a'],'token_logprobs':["
                        "null,-0.5,-0.75,-1.0,-0.25],'top_logprobs':[null,{'a':-1.0,'bytes:\\\\xc3'"
                        ":-0.5},{'b':-2.0,'c':-0.125,'bytes:\\\\xa9':-0.75},{'a':-1.0,'b':-0.5},{'"
                        "b':-2.0,'a':-0.25}],'text_offset':[0,1,1,2,3]}");
    /* without a tokenizer */
    x = item(COMPLETION("'prompt': [64], 'logprobs': 0"));
    answer(&x, 0, "", 1, SPW_FINISH_LENGTH);
    struct request_names n = names();
    n.tokenizer = NULL;
    json_t *line = request_record(&x, &n);
    char *text = json_dumps(line, JSON_COMPACT);
    CHECK(strstr(text, "\"tokens\":[\"token_id:64\"]") && strstr(text, "\"text\":\"\""));
    free(text);
    json_decref(line);
    request_free(&x);
}

/* ---- errors ---- */

static struct request refused(const char *line, struct request_refusal *why)
{
    struct request x;
    line = json_quoted(line);
    int rc = request_parse(&x, &reader, line, strlen(line), 7, why);
    if (!rc)
        rc = request_encode(&x, &reader, why);
    CHECK(rc == -EINVAL);
    return x;
}

static void check_errors(void)
{
    struct request_refusal why;
    struct request x = refused(CHAT(", 'n': 0"), &why);
    expect(request_record_error(&x, &why), &x,
           "{'id':'batch_req_#','custom_id':'q\\n','response':{'status_code':400,'request_id':'req_"
           "#','body':{'error':{'message':'n: found 0, expected a whole number from 1 to "
           "128','type':'invalid_request_error','param':'n','code':'invalid_value'}}},'error':null,"
           "'line':7}");
    x = refused("{'custom_id': 'a', 'url': 'x'}", &why);
    expect(request_record_error(&x, &why), &x,
           "{'id':'batch_req_#','custom_id':'a','response':null,'error':{'message':'url: found "
           "\\'x\\', expected \\'/v1/chat/completions\\' or "
           "\\'/v1/completions\\'','code':'invalid_url'},'line':7}");
    x = refused("{'url': 'x'}", &why);
    expect(request_record_error(&x, &why), &x,
           "{'id':'batch_req_#','custom_id':null,'response':null,'error':{'message':'custom_id: "
           "found nothing, expected a text','code':'missing_required_parameter'},'line':7}");
    x = refused("{'id': 3}", &why);
    request_refuse(&why, 500, NULL, NULL, "%s", "a\xff");
    expect(request_record_error(&x, &why), &x,
           "{'id':3,'error':{'message':'a?','type':'server_error','param':null,'code':null},'line':"
           "7}");
    x = refused("{", &why);
    request_refuse(&why, 0, "invalid_json_line", NULL, "bad");
    expect(request_record_error(&x, &why), &x,
           "{'error':{'message':'bad','type':'invalid_request_error','param':null,'code':'invalid_"
           "json_line'},'line':7}");
}

/* Names depend on the line and its number, and on nothing else. */
static void check_names(void)
{
    static const struct {
        const char *line;
        uint64_t number;
    } cases[] = {{"{'custom_id': 1}", 7},
                 {"{'custom_id': 1}", 7},
                 {"{'custom_id': 1}", 8},
                 {"{'custom_id': 2}", 7}};
    char *ids[4];
    for (size_t i = 0; i < 4; i++) {
        struct request x;
        struct request_refusal why;
        const char *line = json_quoted(cases[i].line);
        CHECK(request_parse(&x, &reader, line, strlen(line), cases[i].number, &why) == -EINVAL);
        json_t *record = request_record_error(&x, &why);
        ids[i] = strdup(json_string_value(json_object_get(record, "id")));
        json_decref(record);
        request_free(&x);
    }
    CHECK(!strcmp(ids[0], ids[1]) && strcmp(ids[0], ids[2]) && strcmp(ids[0], ids[3]));
    for (size_t i = 0; i < 4; i++)
        free(ids[i]);
}

/* ---- for other programs ---- */

static void print_lines(void)
{
    static const char *const lines[] = {
        CHAT(""),
        CHAT(", 'n': 3"),
        CHAT(", 'logprobs': true"),
        CHAT(", 'logprobs': true, 'top_logprobs': 2"),
        COMPLETION("'prompt': 'ab'"),
        COMPLETION("'prompt': ['ab', [64]], 'n': 2, 'echo': true"),
        COMPLETION("'prompt': 'ab', 'logprobs': 0"),
        COMPLETION("'prompt': 'ab', 'logprobs': 2"),
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct request x = item(lines[i]);
        for (size_t k = 0; k < x.n_prompts * x.n_choices; k++)
            answer(&x, k, "a\xc3\xa9", 3, k ? SPW_FINISH_EOS : SPW_FINISH_LENGTH);
        json_t *line = record(&x);
        json_dumpf(line, stdout, JSON_COMPACT);
        puts("");
        json_decref(line);
        request_free(&x);
    }
    struct request_refusal why;
    struct request x = refused(CHAT(", 'n': 0"), &why);
    json_t *line = request_record_error(&x, &why);
    json_dumpf(line, stdout, JSON_COMPACT);
    puts("");
    json_decref(line);
    request_free(&x);
}

/* ---- memory ---- */

static void check_failures(void)
{
    struct request x = item(COMPLETION("'prompt': 'ab', 'logprobs': 2"));
    answer(&x, 0, "a\xc3\xa9", 3, SPW_FINISH_LENGTH);
    int64_t before = spw_alloc_outstanding();
    json_t *line = NULL;
    int n = 0;
    for (; !line; n++) {
        spw_alloc_fail_nth(n);
        line = record(&x);
        spw_alloc_fail_nth(-1);
        CHECK(spw_alloc_outstanding() == before);
    }
    CHECK(n > 10);
    json_decref(line);
    request_free(&x);
}

int main(int argc, char **argv)
{
    job_world_open();
    if (argc == 2 && !strcmp(argv[1], "--print")) {
        print_lines();
        job_world_close();
        return 0;
    }
    check_short();
    check_chat();
    check_chat_logprobs();
    check_completion();
    check_completion_logprobs();
    check_errors();
    check_names();
    check_failures();
    job_world_close();
    return check_done();
}
