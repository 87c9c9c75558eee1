/* Answers of the server's protocols, event by event, from parts that this test makes up, and an
 * allocation that fails anywhere.
 *
 *   test_serve_protocols --print   prints answers: for tests/oracle/serve_answers.py */
#include "tests/serve_world.h"

/* ---- answers ---- */

struct answering {
    struct request x;
    struct serve_answer a;
    struct cli_text out;
};

static void open_answer(struct answering *w, const struct serve_protocol *p, const char *body)
{
    *w = (struct answering){.x = body_of(p, body)};
    w->a = (struct serve_answer){.protocol = p,
                                 .wish = &wish,
                                 .request = &w->x,
                                 .model = "m",
                                 .tokenizer = model.tokenizer,
                                 .id = "1",
                                 .created = 1700000000};
}

static void close_answer(struct answering *w)
{
    w->a.protocol->close(&w->a);
    request_free(&w->x);
    spw_free(w->out.text);
}

static void begin(struct answering *w)
{
    CHECK(w->a.protocol->begin(&w->a, &w->out) == 0);
}

/* A piece of a choice, and a token for each byte of it. */
static void piece(struct answering *w, size_t i, enum spw_answer_piece_kind kind, uint32_t call,
                  const char *text)
{
    struct request_choice *c = &w->x.choices[i];
    struct spw_result *r = &c->result;
    const size_t n = strlen(text), all = r->n_tokens + n;
    const struct spw_answer_piece p = {kind, call, text, n};
    CHECK(request_add_piece(c, &p) == 0);
    r->tokens = spw_realloc(r->tokens, (all + 1) * sizeof *r->tokens);
    r->logprobs = w->x.logprobs ? spw_realloc(r->logprobs, (all + 1) * sizeof(double)) : NULL;
    r->n_top_logprobs = w->x.n_top_logprobs;
    if (r->n_top_logprobs)
        r->top_logprobs =
            spw_realloc(r->top_logprobs, (all + 1) * r->n_top_logprobs * sizeof *r->top_logprobs);
    for (size_t k = 0; k < n; k++, r->n_tokens++) {
        r->tokens[r->n_tokens] = text[k] - '!';
        if (r->logprobs)
            r->logprobs[r->n_tokens] = -0.5;
        for (uint32_t j = 0; j < r->n_top_logprobs; j++)
            r->top_logprobs[r->n_tokens * r->n_top_logprobs + j] =
                (struct spw_token_logprob){text[k] - '!', -0.5};
    }
    if (w->a.own)
        CHECK(w->a.protocol->piece(&w->a, i, &p, &w->out) == 0);
}

static void end_choice(struct answering *w, size_t i, enum spw_finish finish)
{
    w->x.choices[i].result.finish = finish;
    w->x.choices[i].result.logits_hash = 0xabc;
    w->x.choices[i].has_ended = true;
    if (w->a.own)
        CHECK(w->a.protocol->end_choice(&w->a, i, &w->out) == 0);
}

static void expect(struct answering *w, const char *expected)
{
    expected = quoted(expected);
    CHECK_MSG(w->out.text && !strcmp(w->out.text, expected), "\n%s\n%s", w->out.text, expected);
    w->out.n = 0;
}

static void end_stream(struct answering *w)
{
    CHECK(w->a.protocol->end(&w->a, &w->out) == 0);
}

static void whole(struct answering *w)
{
    CHECK(w->a.protocol->whole(&w->a, &w->out) == 0);
}

#define CHUNK(choice)                                                                              \
    "data: {'id':'chatcmpl-1','object':'chat.completion.chunk','created':1700000000,'model':'m',"  \
    "'choices':[" choice "]}\n\n"
#define DELTA(i, delta, finish)                                                                    \
    CHUNK("{'index':" i ",'delta':" delta ",'logprobs':null,'finish_reason':" finish "}")
#define TEXT_CHUNK(choice)                                                                         \
    "data: {'id':'cmpl-1','object':'text_completion','created':1700000000,'model':'m','choices':"  \
    "[" choice "]}\n\n"
#define DONE "data: [DONE]\n\n"

static void check_chat_stream(void)
{
    struct answering w;
    const struct serve_progress half = {5, 10, 1.5, 0};
    use(EACH_MESSAGE);
    open_answer(&w, CHAT, "{'messages':[{'role':'user','content':'a'}],'stream':true,'n':2}");
    begin(&w);
    expect(&w, DELTA("0", "{'role':'assistant','content':''}", "null")
                   DELTA("1", "{'role':'assistant','content':''}", "null"));
    CHECK(w.a.protocol->progress(&w.a, &half, &w.out) == 0);
    expect(&w, "data: {'id':'chatcmpl-1','object':'chat.completion.chunk','created':1700000000,"
               "'model':'m','choices':[{'index':0,'delta':{},'logprobs':null,'finish_reason':null}]"
               ",'spillway':{'prompt_tokens_read':5,'prompt_tokens':10,'seconds_left':1.5,"
               "'requests_before':0}}\n\n");
    piece(&w, 1, SPW_PIECE_REASONING, 0, "hm");
    piece(&w, 0, SPW_PIECE_TEXT, 0, "Hi");
    piece(&w, 1, SPW_PIECE_CALL, 0, "f");
    piece(&w, 1, SPW_PIECE_ARGUMENTS, 0, "{\"a\":");
    piece(&w, 1, SPW_PIECE_ARGUMENTS, 0, "1.10}");
    piece(&w, 1, SPW_PIECE_CALL_END, 0, "");
    end_choice(&w, 1, SPW_FINISH_EOS);
    end_choice(&w, 0, SPW_FINISH_LENGTH);
    end_stream(&w);
    char id[48];
    request_call_id(id, "call_", "1", 1, 0);
    char expected[4096];
    snprintf(expected, sizeof expected,
             DELTA("1", "{'reasoning_content':'hm'}", "null") DELTA("0", "{'content':'Hi'}", "null")
                 DELTA("1",
                       "{'tool_calls':[{'index':0,'id':'%s','type':'function','function':{'name':"
                       "'f','arguments':''}}]}",
                       "null")
                     DELTA("1", "{'tool_calls':[{'index':0,'function':{'arguments':'{\\'a\\':'}}]}",
                           "null")
                         DELTA("1", "{'tool_calls':[{'index':0,'function':{'arguments':'1.10}'}}]}",
                               "null") DELTA("1", "{}", "'tool_calls'") DELTA("0", "{}", "'length'")
                             DONE,
             id);
    expect(&w, expected);
    close_answer(&w);
}

static void check_usage_stream(void)
{
    struct answering w;
    use(EACH_MESSAGE);
    open_answer(&w, CHAT,
                "{'messages':[{'role':'user','content':'a'}],'stream':true,"
                "'stream_options':{'include_usage':true},'logits_hash':true}");
    begin(&w);
    w.out.n = 0;
    w.x.choices[0].result.n_reused = 3;
    end_choice(&w, 0, SPW_FINISH_STOP);
    end_stream(&w);
    expect(&w,
           "data: {'id':'chatcmpl-1','object':'chat.completion.chunk','created':1700000000,'model':"
           "'m','choices':[{'index':0,'delta':{},'logprobs':null,'finish_reason':'stop'}],'usage':"
           "null}\n\n"
           "data: {'id':'chatcmpl-1','object':'chat.completion.chunk','created':1700000000,'model':"
           "'m','choices':[],'usage':{'prompt_tokens':7,'completion_tokens':0,'total_tokens':7,"
           "'prompt_tokens_details':{'cached_tokens':3},'completion_tokens_details':{"
           "'reasoning_tokens':0},'logits_hash':['0000000000000abc']}}\n\n" DONE);
    const struct request_refusal failure = {.status = 500, .type = "server_error", .message = "x"};
    CHECK(w.a.protocol->failed(&w.a, &failure, &w.out) == 0);
    expect(&w,
           "data: {'error':{'message':'x','type':'server_error','param':null,'code':null}}\n\n");
    close_answer(&w);
}

static void check_chat_logprobs(void)
{
    struct answering w;
    use(EACH_MESSAGE);
    open_answer(&w, CHAT,
                "{'messages':[{'role':'user','content':'a'}],'stream':true,'logprobs':"
                "true,'top_logprobs':1}");
    begin(&w);
    w.out.n = 0;
    piece(&w, 0, SPW_PIECE_TEXT, 0, "a");
    piece(&w, 0, SPW_PIECE_TEXT, 0, "b");
    end_choice(&w, 0, SPW_FINISH_LENGTH);
#define TOKEN(c, byte)                                                                             \
    "{'index':0,'delta':{'content':'" c "'},'logprobs':{'content':[{'token':'" c                   \
    "','logprob':-0.5,'bytes':[" byte "],'top_logprobs':[{'token':'" c                             \
    "','logprob':-0.5,'bytes':[" byte "]}]}],'refusal':null},'finish_reason':null}"
    expect(&w, CHUNK(TOKEN("a", "97")) CHUNK(TOKEN("b", "98")) DELTA("0", "{}", "'length'"));
    close_answer(&w);
}

static void check_completion_stream(void)
{
    struct answering w;
    open_answer(&w, COMPLETIONS, "{'prompt':'xy','stream':true,'echo':true,'logprobs':1}");
    begin(&w);
    CHECK(w.out.n == 0);
    w.x.choices[0].result.prompt_logprobs = spw_alloc_zero(2, sizeof(double));
    piece(&w, 0, SPW_PIECE_TEXT, 0, "a");
    piece(&w, 0, SPW_PIECE_TEXT, 0, "b");
    end_choice(&w, 0, SPW_FINISH_EOS);
    end_stream(&w);
    expect(&w,
           TEXT_CHUNK("{'index':0,'text':'xya','logprobs':{'tokens':['x','y','a'],"
                      "'token_logprobs':[null,0.0,-0.5],'top_logprobs':[null,null,{'a':-0.5}],"
                      "'text_offset':[0,1,2]},'finish_reason':null}")
               TEXT_CHUNK("{'index':0,'text':'b','logprobs':{'tokens':['b'],'token_logprobs':["
                          "-0.5],'top_logprobs':[{'b':-0.5}],'text_offset':[3]},'finish_reason':"
                          "null}")
                   TEXT_CHUNK("{'index':0,'text':'','logprobs':{'tokens':[],'token_logprobs':[],"
                              "'top_logprobs':[],'text_offset':[]},'finish_reason':'stop'}") DONE);
    close_answer(&w);
}

static void check_wholes(void)
{
    struct answering w;
    char id[48], expected[2048];
    use(EACH_MESSAGE);
    open_answer(&w, CHAT, "{'messages':[{'role':'user','content':'a'}],'seed':5}");
    piece(&w, 0, SPW_PIECE_REASONING, 0, "hm");
    piece(&w, 0, SPW_PIECE_CALL, 0, "f");
    piece(&w, 0, SPW_PIECE_ARGUMENTS, 0, "{}");
    piece(&w, 0, SPW_PIECE_CALL_END, 0, "");
    end_choice(&w, 0, SPW_FINISH_EOS);
    whole(&w);
    request_call_id(id, "call_", "1", 0, 0);
    snprintf(expected, sizeof expected,
             "{'id':'chatcmpl-1','object':'chat.completion','created':1700000000,'model':'m',"
             "'choices':[{'index':0,'message':{'role':'assistant','reasoning_content':'hm',"
             "'content':null,'refusal':null,'tool_calls':[{'id':'%s','type':'function','function':{"
             "'name':'f','arguments':'{}'}}]},'logprobs':null,'finish_reason':'tool_calls'}],"
             "'usage':{'prompt_tokens':7,'completion_tokens':5,'total_tokens':12,"
             "'prompt_tokens_details':{'cached_tokens':0},'completion_tokens_details':{"
             "'reasoning_tokens':0}},'system_fingerprint':null,'spillway':{'seed':5,'logits_hash':["
             "'0000000000000abc']}}",
             id);
    expect(&w, expected);
    close_answer(&w);
}

#define EVENT(name, rest) "event: " name "\ndata: {'type':'" name "'" rest "}\n\n"

/* Reasoning, text, two calls; the second one is cut. */
static void give_parts(struct answering *w)
{
    piece(w, 0, SPW_PIECE_REASONING, 0, "hm");
    piece(w, 0, SPW_PIECE_TEXT, 0, "Hi");
    piece(w, 0, SPW_PIECE_TEXT, 0, "ho");
    piece(w, 0, SPW_PIECE_CALL, 0, "f");
    piece(w, 0, SPW_PIECE_ARGUMENTS, 0, "{\"a\":1.10");
    piece(w, 0, SPW_PIECE_ARGUMENTS, 0, "}");
    piece(w, 0, SPW_PIECE_CALL_END, 0, "");
    piece(w, 0, SPW_PIECE_CALL, 1, "g");
    piece(w, 0, SPW_PIECE_ARGUMENTS, 1, "{\"b");
}

static void check_messages_stream(void)
{
    struct answering w;
    char first[48], second[48], expected[8192];
    const struct serve_progress waits = {0, 10, -1, 2};
    use(EACH_MESSAGE);
    open_answer(&w, MESSAGES_API,
                "{'max_tokens':99,'messages':[{'role':'user','content':'a'}],'stream':true}");
    begin(&w);
    CHECK(w.a.protocol->progress(&w.a, &waits, &w.out) == 0);
    expect(&w, EVENT("message_start",
                     ",'message':{'id':'msg_1','type':'message','role':'assistant','model':'m',"
                     "'content':[],'stop_reason':null,'stop_sequence':null,'usage':{'input_tokens':"
                     "7,'cache_creation_input_tokens':0,'cache_read_input_tokens':0,"
                     "'output_tokens':0}}") EVENT("ping", "")
                   EVENT("ping", ",'spillway':{'prompt_tokens_read':0,'prompt_tokens':10,"
                                 "'seconds_left':null,'requests_before':2}"));
    w.x.choices[0].result.n_reused = 4;
    give_parts(&w);
    end_choice(&w, 0, SPW_FINISH_LENGTH);
    end_stream(&w);
    request_call_id(first, "toolu_", "1", 0, 0);
    request_call_id(second, "toolu_", "1", 0, 1);
    snprintf(
        expected, sizeof expected,
        EVENT("content_block_start",
              ",'index':0,'content_block':{'type':'thinking','thinking':'','signature':''}")
            EVENT("content_block_delta",
                  ",'index':0,'delta':{'type':'thinking_delta','thinking':'hm'}")
                EVENT("content_block_delta",
                      ",'index':0,'delta':{'type':'signature_delta','signature':'c3BpbGx3YXk='}")
                    EVENT("content_block_stop", ",'index':0") EVENT(
                        "content_block_start",
                        ",'index':1,'content_block':{'type':'text','text':''}")
                        EVENT("content_block_delta",
                              ",'index':1,'delta':{'type':'text_delta','text':'Hi'}")
                            EVENT("content_block_delta",
                                  ",'index':1,'delta':{'type':'text_delta','text':'ho'}")
                                EVENT("content_block_stop", ",'index':1") EVENT(
                                    "content_block_start",
                                    ",'index':2,'content_block':{'type':'tool_use','id':'%s',"
                                    "'name':'f','input':{}}") "%s" EVENT("content_block_stop",
                                                                         ",'index':2")
                                    EVENT("content_block_start",
                                          ",'index':3,'content_block':{'type':'tool_use','id':'%s',"
                                          "'name':'g','input':"
                                          "{}}") "%s" EVENT("content_block_stop", ",'index':3")
                                        EVENT("message_delta",
                                              ",'delta':{'stop_reason':'max_tokens','stop_sequence'"
                                              ":null},'usage':{"
                                              "'input_tokens':3,'cache_creation_input_tokens':0,"
                                              "'cache_read_input_tokens':4,'output_tokens':21}")
                                            EVENT("message_stop", ""),
        first,
#define JSON_DELTA(i, text)                                                                        \
    EVENT("content_block_delta",                                                                   \
          ",'index':" i ",'delta':{'type':'input_json_delta','partial_json':'" text "'}")
        JSON_DELTA("2", "") JSON_DELTA("2", "{\\'a\\':1.10") JSON_DELTA("2", "}"), second,
        JSON_DELTA("3", "") JSON_DELTA("3", "{\\'b"));
    expect(&w, expected);
    close_answer(&w);
}

static void check_messages_whole(void)
{
    struct answering w;
    char id[48], expected[2048];
    open_answer(&w, MESSAGES_API,
                "{'max_tokens':99,'stop_sequences':['x','ho'],'thinking':{'type':'enabled',"
                "'display':'omitted'},'messages':[{'role':'user','content':'a'}]}");
    give_parts(&w);
    end_choice(&w, 0, SPW_FINISH_EOS);
    whole(&w);
    request_call_id(id, "toolu_", "1", 0, 0);
    snprintf(expected, sizeof expected,
             "{'id':'msg_1','type':'message','role':'assistant','model':'m','content':[{'type':"
             "'thinking','thinking':'','signature':'c3BpbGx3YXk='},{'type':'text','text':'Hiho'},{"
             "'type':'tool_use','id':'%s','name':'f','input':{'a':1.10}}],'stop_reason':'tool_use',"
             "'stop_sequence':null,'usage':{'input_tokens':7,'cache_creation_input_tokens':0,"
             "'cache_read_input_tokens':0,'output_tokens':21}}",
             id);
    expect(&w, expected);
    w.x.choices[0].n_calls = 0;
    w.x.choices[0].result.finish = SPW_FINISH_STOP;
    whole(&w);
    CHECK_MSG(strstr(w.out.text, "\"stop_reason\":\"stop_sequence\",\"stop_sequence\":\"ho\""),
              "%s", w.out.text);
    w.x.choices[0].n_calls = 2;
    close_answer(&w);
}

#define STEP(name, n, rest)                                                                        \
    "event: response." name "\ndata: {'type':'response." name "','sequence_number':" n rest "}\n"  \
    "\n"
#define RESPONSE(status, details, output, usage)                                                   \
    ",'response':{'id':'resp_1','object':'response','created_at':1700000000,'status':'" status     \
    "','error':null,'incomplete_details':" details ",'model':'m','output':[" output                \
    "],'usage':" usage ",'instructions':null,'max_output_tokens':50,'parallel_tool_calls':true,"   \
    "'previous_response_id':null,'reasoning':{'effort':'low','summary':null},'store':false,"       \
    "'temperature':0,'text':{'format':{'type':'text'}},'tool_choice':'auto','tools':[],'top_p':"   \
    "1.0,'truncation':'disabled','metadata':{}}"
#define THOUGHT                                                                                    \
    "{'type':'reasoning','id':'rs_1_0','status':'completed','summary':[],'content':[{'type':"      \
    "'reasoning_text','text':'hm'}],'encrypted_content':null}"
#define SAID                                                                                       \
    "{'type':'message','id':'msg_1_1','status':'completed','role':'assistant','content':[{'type':" \
    "'output_text','text':'Hiho','annotations':[],'logprobs':[]}]}"
#define CALLED                                                                                     \
    "{'type':'function_call','id':'fc_1_2','status':'completed','call_id':'%1$s','name':'f',"      \
    "'arguments':'{\\'a\\':1.10}'}"
#define CUT                                                                                        \
    "{'type':'function_call','id':'fc_1_3','status':'incomplete','call_id':'%2$s','name':'g',"     \
    "'arguments':'{\\'b'}"
#define ITEM(n) ",'output_index':" n ",'item':"
#define CONTENT_OF(id, n) ",'item_id':'" id "','output_index':" n ",'content_index':0"
#define OF_CALL(id, n) ",'item_id':'" id "','output_index':" n

/* The steps of a stream, one a line, in their order. */
static const char *const responses_steps[] = {
    STEP("output_item.added", "3",
         ITEM("0") "{'type':'reasoning','id':'rs_1_0','status':'in_progress','summary':[],"
                   "'content':[],'encrypted_content':null}"),
    STEP("content_part.added", "4",
         CONTENT_OF("rs_1_0", "0") ",'part':{'type':'reasoning_text','text':''}"),
    STEP("reasoning_text.delta", "5", CONTENT_OF("rs_1_0", "0") ",'delta':'hm'"),
    STEP("reasoning_text.done", "6", CONTENT_OF("rs_1_0", "0") ",'text':'hm'"),
    STEP("content_part.done", "7",
         CONTENT_OF("rs_1_0", "0") ",'part':{'type':'reasoning_text','text':'hm'}"),
    STEP("output_item.done", "8", ITEM("0") THOUGHT),
    STEP("output_item.added", "9",
         ITEM("1") "{'type':'message','id':'msg_1_1','status':'in_progress','role':'assistant',"
                   "'content':[]}"),
    STEP("content_part.added", "10",
         CONTENT_OF("msg_1_1",
                    "1") ",'part':{'type':'output_text','text':'','annotations':[],'logprobs':[]}"),
    STEP("output_text.delta", "11", CONTENT_OF("msg_1_1", "1") ",'delta':'Hi','logprobs':[]"),
    STEP("output_text.delta", "12", CONTENT_OF("msg_1_1", "1") ",'delta':'ho','logprobs':[]"),
    STEP("output_text.done", "13", CONTENT_OF("msg_1_1", "1") ",'text':'Hiho','logprobs':[]"),
    STEP("content_part.done", "14",
         CONTENT_OF("msg_1_1", "1") ",'part':{'type':'output_text','text':'Hiho','annotations':[],"
                                    "'logprobs':[]}"),
    STEP("output_item.done", "15", ITEM("1") SAID),
    STEP("output_item.added", "16",
         ITEM("2") "{'type':'function_call','id':'fc_1_2','status':'in_progress','call_id':'%1$s',"
                   "'name':'f','arguments':''}"),
    STEP("function_call_arguments.delta", "17", OF_CALL("fc_1_2", "2") ",'delta':'{\\'a\\':1.10'"),
    STEP("function_call_arguments.delta", "18", OF_CALL("fc_1_2", "2") ",'delta':'}'"),
    STEP("function_call_arguments.done", "19",
         OF_CALL("fc_1_2", "2") ",'arguments':'{\\'a\\':1.10}'"),
    STEP("output_item.done", "20", ITEM("2") CALLED),
    STEP("output_item.added", "21",
         ITEM("3") "{'type':'function_call','id':'fc_1_3','status':'in_progress','call_id':'%2$s',"
                   "'name':'g','arguments':''}"),
    STEP("function_call_arguments.delta", "22", OF_CALL("fc_1_3", "3") ",'delta':'{\\'b'"),
    STEP("function_call_arguments.done", "23", OF_CALL("fc_1_3", "3") ",'arguments':'{\\'b'"),
    STEP("output_item.done", "24", ITEM("3") CUT),
    STEP("incomplete", "25",
         RESPONSE("incomplete", "{'reason':'max_output_tokens'}",
                  THOUGHT "," SAID "," CALLED "," CUT,
                  "{'input_tokens':7,'input_tokens_details':{'cached_tokens':4,"
                  "'cache_write_tokens':0},'output_tokens':21,'output_tokens_details':{"
                  "'reasoning_tokens':0},'total_tokens':28}")),
};

static void check_responses_stream(void)
{
    struct answering w;
    char first[48], second[48], all[1 << 14] = "", expected[1 << 14];
    const struct serve_progress half = {5, 10, 1.5, 0};
    const struct request_refusal failure = {.status = 500, .type = "server_error", .message = "x"};
    use(EACH_MESSAGE);
    open_answer(&w, RESPONSES,
                "{'input':'a','stream':true,'temperature':0,'max_output_tokens':50,'reasoning':{"
                "'effort':'low'},'tools':[{'type':'web_search'}]}");
    begin(&w);
    CHECK(w.a.protocol->progress(&w.a, &half, &w.out) == 0);
    expect(&w, STEP("created", "0", RESPONSE("in_progress", "null", "", "null"))
                   STEP("in_progress", "1", RESPONSE("in_progress", "null", "", "null"))
                       STEP("in_progress", "2",
                            RESPONSE("in_progress", "null", "", "null") ",'spillway':{"
                                                                        "'prompt_tokens_read':5,"
                                                                        "'prompt_tokens':10,"
                                                                        "'seconds_left':1.5,"
                                                                        "'requests_before':0}"));
    w.x.choices[0].result.n_reused = 4;
    give_parts(&w);
    end_choice(&w, 0, SPW_FINISH_LENGTH);
    end_stream(&w);
    request_call_id(first, "call_", "1", 0, 0);
    request_call_id(second, "call_", "1", 0, 1);
    for (size_t i = 0; i < sizeof responses_steps / sizeof *responses_steps; i++)
        strcat(all, responses_steps[i]);
    snprintf(expected, sizeof expected, all, first, second);
    expect(&w, expected);
    CHECK(w.a.protocol->failed(&w.a, &failure, &w.out) == 0);
    CHECK_MSG(strstr(w.out.text, "\"status\":\"failed\",\"error\":{\"code\":\"server_error\","
                                 "\"message\":\"x\"}"),
              "%s", w.out.text);
    close_answer(&w);
}

static void check_responses_whole(void)
{
    struct answering w;
    open_answer(
        &w, RESPONSES,
        "{'input':'a','temperature':0,'max_output_tokens':50,'reasoning':{'effort':'low'}}");
    end_choice(&w, 0, SPW_FINISH_EOS);
    whole(&w);
    CHECK_MSG(strstr(w.out.text, "\"output\":[{\"type\":\"message\",\"id\":\"msg_1_0\","), "%s",
              w.out.text);
    close_answer(&w);
}

static void check_errors(void)
{
    struct cli_text out = {0};
    struct request_refusal error;
    request_refuse(&error, 429, "rate_limit_exceeded", NULL, "full");
    CHECK(CHAT->error(&error, "1a", &out) == 0);
    CHECK_MSG(!strcmp(out.text, "{\"error\":{\"message\":\"full\",\"type\":\"rate_limit_error\","
                                "\"param\":null,\"code\":\"rate_limit_exceeded\"}}"),
              "%s", out.text);
    out.n = 0;
    CHECK(MESSAGES_API->error(&error, "1a", &out) == 0);
    CHECK_MSG(!strcmp(out.text, "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\","
                                "\"message\":\"full\"},\"request_id\":\"req_1a\"}"),
              "%s", out.text);
    spw_free(out.text);
}

/* ---- all of it once ---- */

struct sample {
    const char *path, *body;
};
#define ASK "'messages':[{'role':'user','content':'a'}]"
static const struct sample samples[] = {
    {"/v1/chat/completions", "{" ASK ",'stream':true,'n':2,'stream_options':{'include_usage':true,"
                             "'continuous_usage_stats':true},'logits_hash':true}"},
    {"/v1/chat/completions", "{" ASK ",'logprobs':true,'top_logprobs':2,'stream':true}"},
    {"/v1/chat/completions", "{" ASK ",'logprobs':true,'n':2,'logits_hash':true,'seed':5}"},
    {"/v1/completions", "{'prompt':['xy','z'],'stream':true,'logprobs':2,'stream_options':{"
                        "'include_usage':true}}"},
    {"/v1/completions", "{'prompt':[[1,2]],'n':2,'logprobs':1,'seed':5}"},
    {"/v1/responses", "{'input':'a','stream':true,'include':['message.output_text.logprobs'],"
                      "'top_logprobs':1,'instructions':'I','logits_hash':true}"},
    {"/v1/responses", "{'input':'a','tools':[{'type':'function','name':'f','parameters':{'a':1},"
                      "'strict':true}],'tool_choice':'auto','text':{"
                      "'format':{'type':'text'}},'metadata':{'k':'v'},'temperature':0.5}"},
    {"/v1/messages", "{'max_tokens':9," ASK ",'stream':true,'logits_hash':true}"},
    {"/v1/messages", "{'max_tokens':9," ASK ",'stop_sequences':['x']}"},
};

static void show(const struct answering *w, const char *kind)
{
    json_t *line = json_pack("{s:s,s:s,s:s#}", "path", w->a.protocol->path, "kind", kind, "text",
                             w->out.text, (int)w->out.n);
    json_dumpf(line, stdout, JSON_COMPACT);
    puts("");
    json_decref(line);
}

/* All bytes of an answer. 0, or what the first call returned that failed. */
static int write_all(struct answering *w)
{
    static const struct spw_answer_piece pieces[] = {{SPW_PIECE_REASONING, 0, "hm", 2},
                                                     {SPW_PIECE_TEXT, 0, "Hi", 2},
                                                     {SPW_PIECE_CALL, 0, "f", 1},
                                                     {SPW_PIECE_ARGUMENTS, 0, "{\"a\":1.10}", 10},
                                                     {SPW_PIECE_CALL_END, 0, "", 0}};
    const struct serve_progress half = {5, 10, 1.5, 0};
    const struct serve_protocol *p = w->a.protocol;
    const size_t n = w->x.n_prompts * w->x.n_choices;
    if (!wish.stream)
        return p->whole(&w->a, &w->out);
    int rc = p->begin(&w->a, &w->out);
    if (!rc)
        rc = p->progress(&w->a, &half, &w->out);
    for (size_t k = 0; k < sizeof pieces / sizeof *pieces && !rc; k++)
        for (size_t i = 0; i < n && !rc; i++) {
            if (w->x.form == REQUEST_COMPLETION && pieces[k].kind != SPW_PIECE_TEXT)
                continue; /* it has only text */
            rc = request_add_piece(&w->x.choices[i], &pieces[k]);
            if (!rc)
                rc = p->piece(&w->a, i, &pieces[k], &w->out);
        }
    for (size_t i = 0; i < n && !rc; i++)
        rc = p->end_choice(&w->a, i, &w->out);
    return rc ? rc : p->end(&w->a, &w->out);
}

static void open_sample(struct answering *w, const struct sample *s)
{
    open_answer(w, protocol_of(s->path), s->body);
    for (size_t i = 0; i < w->x.n_prompts * w->x.n_choices; i++) {
        piece(w, i, SPW_PIECE_TEXT, 0, wish.stream ? "" : "Hi");
        if (!wish.stream && w->x.form == REQUEST_CHAT) {
            piece(w, i, SPW_PIECE_REASONING, 0, "hm");
            piece(w, i, SPW_PIECE_CALL, 0, "f");
            piece(w, i, SPW_PIECE_ARGUMENTS, 0, "{\"a\":1.10}");
            piece(w, i, SPW_PIECE_CALL_END, 0, "");
        }
        end_choice(w, i, SPW_FINISH_EOS);
    }
}

static void print_samples(void)
{
    struct answering w;
    const struct request_refusal failure = {.status = 500, .type = "server_error", .message = "x"};
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        open_sample(&w, &samples[i]);
        CHECK(write_all(&w) == 0);
        show(&w, wish.stream ? "stream" : "whole");
        w.out.n = 0;
        CHECK(w.a.protocol->failed(&w.a, &failure, &w.out) == 0 || !wish.stream);
        if (wish.stream)
            show(&w, "failure");
        w.out.n = 0;
        CHECK(w.a.protocol->error(&failure, w.a.id, &w.out) == 0);
        show(&w, "error");
        close_answer(&w);
    }
}

/* Each allocation fails once, while an answer is written. A failure that changes nothing is one of
 * a value that the answer does not have. */
static void check_answer_failures(const struct sample *s)
{
    struct answering right, w;
    bool failed = true;
    int n = 0;
    open_sample(&right, s);
    CHECK(write_all(&right) == 0);
    for (; failed; n++) {
        open_sample(&w, s);
        spw_alloc_fail_nth(n);
        int rc = write_all(&w);
        failed = json_allocation_has_failed();
        spw_alloc_fail_nth(-1);
        CHECK_MSG(rc == -ENOMEM || (rc == 0 && !strcmp(w.out.text, right.out.text)),
                  "%s: %d\n%s\n%s", s->body, rc, w.out.text, right.out.text);
        close_answer(&w);
    }
    CHECK_MSG(n > 20, "%s: %d", s->body, n);
    close_answer(&right);
}

static void check_failures(void)
{
    json_set_alloc_funcs(json_alloc, json_free);
    use(EACH_MESSAGE);
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        check_answer_failures(&samples[i]);
    json_set_alloc_funcs(malloc, free);
}

int main(int argc, char **argv)
{
    job_world_open();
    if (argc == 2 && !strcmp(argv[1], "--print")) {
        use(EACH_MESSAGE);
        print_samples();
        job_world_close();
        return check_done();
    }
    check_failures();
    check_chat_stream();
    check_usage_stream();
    check_chat_logprobs();
    check_completion_stream();
    check_wholes();
    check_messages_stream();
    check_messages_whole();
    check_responses_stream();
    check_responses_whole();
    check_errors();
    job_world_close();
    return check_done();
}
