/* Bodies of the server's protocols: which prompts they give, what is folded, ignored and refused,
 * and an allocation that fails anywhere. */
#include "tests/serve_world.h"
#include "tools/command/request/reader_parts.h"

#include <glob.h>

static void check_prompt(const struct serve_protocol *p, const char *body, const char *expected)
{
    char *text = NULL;
    size_t n;
    struct request x = body_of(p, body);
    if (x.n_prompts)
        CHECK(!spw_tokenizer_decode(model.tokenizer, x.prompts[0].tokens, x.prompts[0].n, false,
                                    &text, &n));
    CHECK_MSG(text && !strcmp(text, expected), "%s\n%s\n%s", body, text, expected);
    spw_free(text);
    request_free(&x);
}

static void check_refused(const struct serve_protocol *p, const char *body, const char *message)
{
    struct request x;
    CHECK_MSG(read_body(p, &x, body) && why.status == 400 && strstr(why.message, message), "%s: %s",
              body, why.message);
    request_free(&x);
}

/* ---- templates ---- */

static void check_habits(bool leads, bool inside, bool repeats, const char *text)
{
    use(text);
    CHECK_MSG(reader.habits.leads == leads && reader.habits.inside == inside &&
                  reader.habits.repeats == repeats,
              "%s: %d %d %d", text, reader.habits.leads, reader.habits.inside,
              reader.habits.repeats);
}

#define FIRST_ONLY                                                                                 \
    "{%- for m in messages -%}{%- if m.role == 'system' and not loop.first -%}"                    \
    "{{ raise_exception('first') }}{%- endif -%}<{{ m.role }}>" CONTENT "{%- endfor -%}"
#define HOISTS                                                                                     \
    "{%- for m in messages if m.role == 'system' -%}<S>" CONTENT "{%- endfor -%}"                  \
    "{%- for m in messages if m.role != 'system' -%}<{{ m.role }}>" CONTENT "{%- endfor -%}"
#define DROPS                                                                                      \
    "{%- for m in messages if m.role != 'system' -%}<{{ m.role }}>" CONTENT "{%- endfor -%}"
#define AS_USER                                                                                    \
    "{%- for m in messages -%}<{{ 'S' if loop.first and m.role == 'system' else 'a' if m.role == " \
    "'assistant' else 'u' }}>" CONTENT "{%- endfor -%}"
#define ALTERNATES                                                                                 \
    "{%- for m in messages -%}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}"             \
    "{{ raise_exception('alternate') }}{%- endif -%}<{{ m.role }}>" CONTENT "{%- endfor -%}"

#define ROLE(role, text) "{'role':'" role "','content':'" text "'}"
#define MESSAGES(list) "{'model':'m','messages':[" list "]}"

static void check_templates(void)
{
    check_habits(true, true, true, EACH_MESSAGE);
    check_habits(true, false, true, FIRST_ONLY);
    check_habits(true, false, true, HOISTS);
    check_habits(false, false, true, DROPS);
    check_habits(true, false, true, AS_USER);
    check_habits(false, false, false, ALTERNATES);
}

static const char middle[] =
    MESSAGES(ROLE("system", "A") "," ROLE("developer", "B") "," ROLE("user", "c") "," ROLE(
        "system", "D") "," ROLE("assistant", "e") "," ROLE("system", "F") "," ROLE("user", "g"));
static const char calls[] = MESSAGES(ROLE(
    "user", "a") ",{'role':'assistant','content':null,'tool_calls':[{'id':'1','type':"
                 "'function','function':{'name':'f','arguments':'{}'}}]}," ROLE(
                     "system",
                     "S") ",{'role':'tool','tool_call_id':'1','content':'r'}," ROLE("user", "b"));

static void check_systems(void)
{
    use(EACH_MESSAGE);
    check_prompt(CHAT, middle, "<system>A|B<user>c<system>D<assistant>e<system>F<user>g");
    check_prompt(CHAT, calls, "<user>a<assistant>None<tool>r<user>S|b");
    check_prompt(CHAT, MESSAGES(ROLE("developer", "A")), "<system>A");
    use(FIRST_ONLY);
    check_prompt(CHAT, middle, "<system>A|B<user>c|D<assistant>e<user>F|g");
    check_prompt(CHAT,
                 MESSAGES(ROLE("user", "a") "," ROLE("assistant", "b") "," ROLE("system", "S")),
                 "<user>a<assistant>b<user>S");
    use(ALTERNATES);
    check_prompt(CHAT, middle, "<user>A|B|c|D<assistant>e<user>F|g");
    check_prompt(CHAT, MESSAGES(ROLE("user", "a") "," ROLE("user", "b")), "<user>a|b");
    use(EACH_MESSAGE);
    /* a text and a list of one text are the same */
    check_prompt(
        CHAT,
        MESSAGES("{'role':'system','content':[{'type':'text','text':'A'}]}," ROLE("user", "b")),
        "<system>A<user>b");
}

/* With a template of a real model, no system message is lost, and none makes it fail. */
static bool check_real_template(const char *path)
{
    static const char *const texts[] = {"Alpha", "Bravo", "Charlie", "Delta", "Echo", "Foxtrot"};
    struct request x = {.form = REQUEST_CHAT};
    struct spw_error err = {0};
    char *jinja = NULL, *text = NULL;
    size_t bytes;
    json_t *messages =
        json_pack("[{ss,ss},{ss,ss},{ss,ss},{ss,ss},{ss,ss},{ss,ss}]", "role", "system", "content",
                  texts[0], "role", "user", "content", texts[1], "role", "system", "content",
                  texts[2], "role", "assistant", "content", texts[3], "role", "developer",
                  "content", texts[4], "role", "user", "content", texts[5]);
    /* Hermes' template is for conversations with tools */
    json_t *tools =
        json_pack("[{ss,s{ss,ss,s{ss,s{}}}}]", "type", "function", "function", "name", "f",
                  "description", "d", "parameters", "type", "object", "properties");
    CHECK(tools && messages);
    CHECK(cli_read_file(path, &jinja, &bytes) == 0);
    use(jinja);
    CHECK_MSG(request_fold_systems(&x, &reader, messages, &why) == 0, "%s: %s", path, why.message);
    int rc = request_render(&reader, messages, strstr(path, "Hermes") ? tools : NULL, NULL, false,
                            &text, &bytes, &err);
    CHECK_MSG(rc == 0, "%s: %s", path, err.text);
    for (size_t i = 0; i < sizeof texts / sizeof *texts && !rc; i++)
        CHECK_MSG(strstr(text, texts[i]), "%s: %s: %s", path, texts[i], text);
    const bool inside = reader.habits.inside;
    json_decref(messages);
    json_decref(tools);
    spw_free(text);
    spw_free(jinja);
    return inside;
}

static void check_real_templates(void)
{
    const char *data = getenv("SPW_DATA");
    char pattern[1024];
    glob_t found;
    size_t n_inside = 0;
    snprintf(pattern, sizeof pattern, "%s/chat/templates/*.jinja", data ? data : "");
    if (!data || glob(pattern, 0, NULL, &found))
        return;
    write_text("tokenizer_config.json", "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}");
    for (size_t i = 0; i < found.gl_pathc; i++)
        n_inside += check_real_template(found.gl_pathv[i]);
    fprintf(stderr, "%zu of %zu templates have system messages inside\n", n_inside, found.gl_pathc);
    CHECK(n_inside > 0 && n_inside < found.gl_pathc);
    globfree(&found);
    CHECK(unlink(in_folder("tokenizer_config.json")) == 0);
}

static void check_chat_bodies(void)
{
    struct request x;
    use(EACH_MESSAGE);
    /* aider's */
    x = body_of(CHAT, "{'model':'m','messages':[{'role':'user','content':'a'}],'stream':true,"
                      "'temperature':0}");
    CHECK(wish.stream && !wish.include_usage && x.sampling.temperature == 0 && x.n_choices == 1);
    CHECK(!strcmp(json_string_value(json_object_get(x.body, "model")), "m"));
    request_free(&x);
    /* unknown keys and tools; lengths beyond the context */
    x = body_of(CHAT,
                "{'model':'m','messages':[{'role':'user','content':'a'}],'foo':{'x':1},"
                "'tools':[{'type':'web_search'}],'tool_choice':'required','max_tokens':"
                "1000000,'stream_options':{'include_usage':true},'stop':['a','b','c','d','e'],"
                "'reasoning_effort':'xhigh','logits_hash':true,'service_tier':'auto'}");
    CHECK(!wish.stream && wish.include_usage && wish.logits_hash && x.stop.n == 5);
    CHECK(x.max_new_tokens == LONGEST - x.prompts[0].n);
    const uint64_t seed = x.sampling.seed;
    request_free(&x);
    x = body_of(CHAT, MESSAGES(ROLE("user", "a")));
    CHECK(x.sampling.seed != seed && x.max_new_tokens > 0);
    request_free(&x);
    x = body_of(CHAT, "{'messages':[{'role':'user','content':'a'}],'seed':7,'max_tokens':-1}");
    CHECK(x.sampling.seed == 7);
    request_free(&x);
    check_refused(CHAT, "{'messages':[{'role':'user','content':'a'}],'stream':1}",
                  "stream: found 1");
    check_refused(CHAT, "{'messages':[{'role':'user','content':'a'}],'temperature':-1}",
                  "temperature: found -1");
    check_refused(CHAT, "{'model':'m'}", "messages: found nothing");
    check_refused(CHAT, "{'model':'m',", "no JSON");
    check_refused(CHAT, "[1]", "expected an object");
    use(EACH_MESSAGE "{% if add_generation_prompt %}<answer>{% endif %}");
    check_prompt(CHAT, MESSAGES(ROLE("user", "a")), "<user>a<answer>");
    check_prompt(CHAT, "{'messages':[{'role':'user','content':'a'}],'add_generation_prompt':false}",
                 "<user>a");
    check_refused(CHAT,
                  "{'messages':[{'role':'user','content':'a'}],'add_generation_prompt':true,"
                  "'continue_final_message':true}",
                  "expected at most one");
    use(EACH_MESSAGE);
    /* twice the same key: the last one */
    check_prompt(CHAT, "{'messages':1,'messages':[{'role':'user','content':'a'}]}", "<user>a");
}

/* Halves of characters; U+FFFD becomes "?" here: the tokenizer has only bytes below 127. */
static void check_surrogates(void)
{
    use("{%- for m in messages -%}{{ m.content | length }}{%- for c in m.content -%}"
        "{{ 'R' if c == '\\ufffd' else 'P' if c == '\\U0001f600' else c }}{%- endfor -%}"
        "{%- endfor -%}");
    check_prompt(CHAT, MESSAGES(ROLE("user", "a\\ud83d")), "2aR");
    check_prompt(CHAT, MESSAGES(ROLE("user", "\\ud83dX\\ude00")), "3RXR");
    check_prompt(CHAT, MESSAGES(ROLE("user", "\\ud83d\\ude00a")), "2Pa");
    check_prompt(CHAT, MESSAGES(ROLE("user", "\\ud83d\\ud83d\\uDE00")), "2RP");
    check_prompt(CHAT, MESSAGES(ROLE("user", "\\\\ud83d")), "6\\ud83d");
}

static void check_lengths(void)
{
    char body[2 * LONGEST], text[LONGEST + 1];
    struct request x;
    memset(text, 'a', LONGEST);
    text[LONGEST] = '\0';
    use(EACH_MESSAGE);
    snprintf(body, sizeof body, MESSAGES(ROLE("user", "%s")), text);
    CHECK(read_body(CHAT, &x, body) == -E2BIG && !strcmp(why.code, "context_length_exceeded"));
    CHECK_MSG(!strcmp(why.message, "This model's maximum context length is 4096 tokens. However, "
                                   "your messages resulted in 4102 tokens."),
              "%s", why.message);
    request_free(&x);
    /* only its log-probabilities */
    snprintf(body, sizeof body, "{'prompt':'%s','max_tokens':0,'echo':true,'logprobs':1}", text);
    x = body_of(COMPLETIONS, body);
    CHECK(x.echo && x.max_new_tokens == 0 && x.prompts[0].n == LONGEST);
    request_free(&x);
}

/* ---- bodies of /v1/messages ---- */

#define CALLS                                                                                      \
    "{%- for m in messages -%}<{{ m.role }}>{{ m.reasoning_content or '' }}" CONTENT               \
    "{%- for c in m.tool_calls or [] -%}[{{ c.function.name }}{{ c.function.arguments | tojson "   \
    "}}]{%- endfor -%}{%- endfor -%}{%- if tools -%}T{{ tools | length }}{{ tools[0].function."    \
    "name }}{%- endif -%}{%- if add_generation_prompt -%}!{%- endif -%}"

static void check_messages_bodies(void)
{
    struct request x;
    use(CALLS);
    /* Claude Code's first request, shortened: the billing header, a system message in the middle */
    check_prompt(
        MESSAGES_API,
        "{'model':'m','max_tokens':32000,'system':[{'type':'text','text':'x-anthropic-"
        "billing-header:cc_version=2;'},{'type':'text','text':'A','cache_control':{'type':"
        "'ephemeral'}},{'type':'text','text':'B'}],'messages':[{'role':'user','content':[{"
        "'type':'text','text':'a'},{'type':'text','text':'b'}]},{'role':'system','content'"
        ":'S'}],'tools':[{'name':'f','description':'d','input_schema':{'type':'object'}},{"
        "'type':'web_search_20250305','name':'web_search'},{'name':'late','defer_loading':"
        "true,'input_schema':{}}],'metadata':{'user_id':'u'},'thinking':{'type':'adaptive',"
        "'display':'omitted'},'context_management':{'edits':[]},'output_config':{'effort':"
        "'high'},'stream':true}",
        "<system>A|B<user>a;b<system>ST1f!");
    CHECK(wish.stream && wish.hides_reasoning);
    /* a text and a list of one text */
    check_prompt(MESSAGES_API,
                 "{'max_tokens':1,'system':'A','messages':[{'role':'user','content':'a'},{'role':"
                 "'system','content':[{'type':'text','text':'S'}]}]}",
                 "<system>A<user>a<system>S!");
    /* reasoning, calls, their results before the rest; a reference to a tool; roles are joined */
    check_prompt(
        MESSAGES_API,
        "{'max_tokens':1,'tools':[{'name':'late','defer_loading':true,'input_schema':{'a':1}}],"
        "'messages':[{'role':'user','content':'a'},{'role':'assistant','content':[{'type':"
        "'thinking','thinking':'hm','signature':'s'},{'type':'redacted_thinking','data':'x'},{"
        "'type':'text','text':'b'},{'type':'tool_use','id':'1','name':'f','input':{'n':1.10}}]},{"
        "'role':'user','content':[{'type':'text','text':'c'},{'type':'tool_result','tool_use_id':"
        "'1','content':[{'type':'text','text':'r'},{'type':'tool_reference','tool_name':'late'}]},"
        "{'type':'tool_result','tool_use_id':'2','is_error':true}]},{'role':'user','content':'d'"
        "}]}",
        "<user>a<assistant>hmb[f{\"n\":1.1}]<tool>r;{\"name\":\"late\",\"parameters\":{\"a\":1}}"
        "<tool><user>c;d!");
    /* the answer continues a last message of the assistant */
    check_prompt(MESSAGES_API,
                 "{'max_tokens':1,'messages':[{'role':'user','content':'a'},{'role':'assistant',"
                 "'content':'b'}]}",
                 "<user>a<assistant>b");
    x = body_of(MESSAGES_API,
                "{'max_tokens':128000,'messages':[{'role':'user','content':'a'}],'stop_sequences':["
                "'x','y'],'top_k':3,'min_length':7,'tool_choice':{'type':'auto'},'thinking':{'type'"
                ":'disabled'}}");
    CHECK(x.max_new_tokens == LONGEST - x.prompts[0].n && x.stop.n == 2 && x.sampling.top_k == 3 &&
          x.sampling.rules.min_length == 7);
    CHECK(json_is_false(
        json_object_get(json_object_get(x.body, "chat_template_kwargs"), "enable_thinking")));
    request_free(&x);
    check_refused(MESSAGES_API,
                  "{'max_tokens':1,'messages':[{'role':'user','content':[{'type':'tool_result',"
                  "'tool_use_id':'1','content':[{'type':'image','source':{}}]}]}]}",
                  "Could not process image");
    check_refused(MESSAGES_API, "{'max_tokens':1,'messages':[{'role':'user'}]}",
                  "messages.0.content: found nothing");
    check_refused(MESSAGES_API, "{'max_tokens':1,'messages':[{'role':'x','content':''}]}",
                  "messages.0.role: found");
    check_refused(MESSAGES_API, "{'max_tokens':0,'messages':[{'role':'user','content':'a'}]}",
                  "max_tokens: found 0");
    CHECK(serve_refuse_length(MESSAGES_API, 5, 4, &why) == -E2BIG &&
          !strcmp(why.message, "prompt is too long: 5 tokens > 4 maximum"));
}

/* ---- bodies of /v1/responses ---- */

static void check_responses_bodies(void)
{
    struct request x;
    use(CALLS);
    /* Codex' first request, shortened: two developer messages, tools of many types */
    check_prompt(RESPONSES,
                 "{'model':'m','stream':true,'input':[{'type':'message','role':'developer','content"
                 "':[{'type':'input_text','text':'A'}]},{'type':'message','role':'developer',"
                 "'content':[{'type':'input_text','text':'B'}]},{'role':'user','content':[{'type':"
                 "'input_text','text':'a'}]}],'tools':[{'type':'function','name':'f','parameters':{"
                 "'type':'object'},'strict':false},{'type':'namespace','name':'n','tools':[]},{"
                 "'type':'web_search'}],'tool_choice':'auto','parallel_tool_calls':true,'reasoning'"
                 ":{'summary':'auto'},'store':false,'include':['reasoning.encrypted_content'],"
                 "'prompt_cache_key':'k','client_metadata':{'x':'y'}}",
                 "<system>A|B<user>aT1f!");
    CHECK(wish.stream);
    /* its next one: a turn of the assistant in items */
    check_prompt(
        RESPONSES,
        "{'input':[{'role':'user','content':'a'},{'type':'reasoning','id':'r','summary':[]"
        ",'content':[{'type':'reasoning_text','text':'hm'}]},{'type':'message','role':"
        "'assistant','content':[{'type':'output_text','text':'b'}]},{'type':"
        "'function_call','call_id':'1','name':'f','arguments':'{}'},{'type':"
        "'function_call','call_id':'2','name':'g','arguments':'oops'},{'type':"
        "'function_call_output','call_id':'1','output':'r'},{'type':"
        "'function_call_output','call_id':'2','output':[{'type':'input_text','text':'s'}]},"
        "{'type':'web_search_call','id':'w'},{'type':'reasoning','summary':[]},{'role':"
        "'developer','content':'D'},{'role':'user','content':'c'}],'instructions':'I'}",
        "<system>I<user>a<assistant>hmb[f{}][g\"oops\"]<tool>r<tool>s<system>D<user>c!");
    /* LM Studio's way to load a model */
    x = body_of(RESPONSES, "{'model':'m','input':'','max_output_tokens':1}");
    CHECK(x.max_new_tokens == 1);
    request_free(&x);
    check_refused(RESPONSES, "{'input':'a','previous_response_id':'resp_1'}",
                  "previous_response_id: the server keeps no responses");
    CHECK(!strcmp(why.param, "previous_response_id"));
    check_refused(RESPONSES, "{'input':'a','background':true}", "background: ");
    check_refused(RESPONSES, "{'input':[{'type':'item_reference','id':'1'}]}", "keeps no items");
    check_refused(RESPONSES,
                  "{'input':[{'role':'user','content':[{'type':'input_image','image_url':'x'}]}]}",
                  "the model reads texts only");
    check_refused(RESPONSES, "{'model':'m'}", "input: found nothing");
}

/* ---- seeds of the fuzz target ---- */

/* The first byte of a seed names the protocol. A seed that is refused would find little. */
static void check_seeds(void)
{
    glob_t found;
    use(CALLS);
    CHECK(glob("tests/fuzz/seeds/serve/*", 0, NULL, &found) == 0 && found.gl_pathc > 4);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *text = NULL;
        size_t n = 0;
        struct request x;
        CHECK(cli_read_file(found.gl_pathv[i], &text, &n) == 0 && n > 1);
        int rc = serve_read(serve_protocols[(unsigned char)*text % serve_n_protocols], &x, &wish,
                            text + 1, n - 1, &reader, LONGEST, &why);
        CHECK_MSG(rc == 0, "%s: %s", found.gl_pathv[i], why.message);
        request_free(&x);
        spw_free(text);
    }
    globfree(&found);
}

/* ---- memory ---- */

/* The same while a body is read. */
static void check_body_failures(const struct serve_protocol *p, const char *body)
{
    struct request right = body_of(p, body), x;
    bool failed = true;
    int n = 0;
    for (; failed; n++) {
        const int64_t before = spw_alloc_outstanding();
        char *text = quoted(body);
        spw_alloc_fail_nth(n);
        int rc = serve_read(p, &x, &wish, text, strlen(text), &reader, LONGEST, &why);
        failed = json_allocation_has_failed();
        spw_alloc_fail_nth(-1);
        CHECK_MSG((rc == -ENOMEM && why.status == 500) ||
                      (!rc && x.prompts[0].n == right.prompts[0].n &&
                       !memcmp(x.prompts[0].tokens, right.prompts[0].tokens,
                               x.prompts[0].n * sizeof(int32_t))),
                  "%d: %d %s", n, rc, why.message);
        request_free(&x);
        CHECK(spw_alloc_outstanding() == before);
    }
    CHECK(n > 10);
    request_free(&right);
}

static void check_failures(void)
{
    static const char items[] =
        "{'instructions':'I','input':[{'role':'user','content':'a'},{'type':'reasoning','content':["
        "{'type':'reasoning_text','text':'hm'}]},{'type':'function_call','call_id':'1','name':'f',"
        "'arguments':'{}'},{'type':'function_call_output','call_id':'1','output':'r'},{'role':"
        "'developer','content':'D'}],'tools':[{'type':'function','name':'f','parameters':{}}],"
        "'text':{'format':{'type':'text'}},'tool_choice':'auto'}";
    static const char blocks[] =
        "{'max_tokens':9,'system':'S','messages':[{'role':'user','content':'a'},{'role':'assistant'"
        ",'content':[{'type':'thinking','thinking':'hm'},{'type':'tool_use','id':'1','name':'f',"
        "'input':{'a':1}}]},{'role':'user','content':[{'type':'tool_result','tool_use_id':'1',"
        "'content':[{'type':'tool_reference','tool_name':'f'}]}]},{'role':'system','content':'D'}],"
        "'tools':[{'name':'f','input_schema':{}}],'thinking':{'type':'adaptive'}}";
    json_set_alloc_funcs(json_alloc, json_free);
    use(CALLS);
    check_body_failures(CHAT, calls);
    check_body_failures(RESPONSES, items);
    check_body_failures(MESSAGES_API, blocks);
    use(FIRST_ONLY);
    check_body_failures(CHAT, middle);
    json_set_alloc_funcs(malloc, free);
}

int main(void)
{
    job_world_open();
    check_failures();
    check_templates();
    check_systems();
    check_real_templates();
    check_chat_bodies();
    check_surrogates();
    check_lengths();
    check_messages_bodies();
    check_responses_bodies();
    check_seeds();
    job_world_close();
    return check_done();
}
