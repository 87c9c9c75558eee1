#!/usr/bin/env python3
"""`spillway serve` with the packages of real clients: openai, anthropic, langchain, lm-eval, each where Python has it (77:
none of them). What they get is compared with `spillway generate`, and with each other.

    serve_clients.py SPILLWAY
"""
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time

from serve_world import MODEL, TOOL_TEMPLATE, Server, record

SPILLWAY = os.path.abspath(sys.argv[1])
failures = []


def check(condition, text):
    if not condition:
        failures.append(text)
        print("failed:", str(text)[:1000], file=sys.stderr)


def refused(kind, call):
    """The exception of this kind that the call raises."""
    try:
        check(False, f"expected {kind.__name__}, got {call()!r}")
    except kind as e:
        return e
    return None


def generated(folder, prompt, n):
    """The text and the hash of its logits of `spillway generate`."""
    report = os.path.join(folder, "report.json")
    run = subprocess.run([SPILLWAY, "generate", MODEL, "--prompt", prompt, "--max-new-tokens", str(n), "--report", report, "--quiet",
                          "--device", "cpu", "--threads", "2"], check=True, capture_output=True)
    with open(report) as f:
        return run.stdout.decode().removesuffix("\n"), json.load(f)["logits_hash"]


def question(seed=1, n=60):
    """A prompt, and the same as a chat."""
    text = record(n, seed)
    return text, [{"role": "user", "content": text.removesuffix("\nA:")}]


def with_openai(server, folder):
    import openai
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)
    prompt, messages = question()
    text, logits = generated(folder, prompt, 20)

    names = [m.id for m in client.models.list()]
    check(names == ["records"] and client.models.retrieve("records").id == "records", names)
    e = refused(openai.NotFoundError, lambda: client.models.retrieve("another"))
    check(e and e.code == "model_not_found", e)
    refused(openai.NotFoundError, lambda: client.chat.completions.create(model="another", messages=messages))

    ask = dict(model="records", messages=messages, temperature=0, max_tokens=20)
    raw = client.chat.completions.with_raw_response.create(**ask)
    answer = raw.parse()
    check(answer.choices[0].message.content == text, (answer.choices[0].message.content, text))
    check(raw.headers["x-logits-hash"] == logits.removeprefix("0x"), (raw.headers["x-logits-hash"], logits))
    check(answer.choices[0].finish_reason == "stop" and answer.usage.prompt_tokens > 20, answer)

    stream = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    check("".join(c.choices[0].delta.content or "" for c in stream if c.choices) == text, stream)
    check(stream[-1].usage.completion_tokens == answer.usage.completion_tokens and not stream[-1].choices, stream[-1])
    check(stream[-1].usage.prompt_tokens_details.cached_tokens > 0, stream[-1])  # the same prompt again
    check([c.choices[0].finish_reason for c in stream if c.choices][-1] == "stop", stream)

    several = client.chat.completions.create(**dict(ask, temperature=1.5), n=3, seed=5)
    again = client.chat.completions.create(**dict(ask, temperature=1.5), n=3, seed=5)
    check([c.message.content for c in several.choices] == [c.message.content for c in again.choices], several)
    check([c.index for c in several.choices] == [0, 1, 2], several)

    likely = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    check("".join(t.token for t in likely).startswith(text) and all(len(t.top_logprobs) == 2 for t in likely), likely)
    biased = client.chat.completions.create(**dict(ask, max_tokens=1), logit_bias={"300": 100}, logprobs=True)
    check(biased.choices[0].finish_reason == "length", biased)

    completion = client.completions.create(model="records", prompt=prompt, temperature=0, max_tokens=20, stop=["is"])
    check(completion.choices[0].text == text[:text.index("is")], completion)
    two = client.completions.create(model="records", prompt=[prompt, prompt], temperature=0, max_tokens=3, logprobs=1, echo=True)
    check(len(two.choices) == 2 and two.choices[0].text == two.choices[1].text and two.choices[0].text.startswith(prompt), two)
    check(two.choices[0].logprobs.token_logprobs[0] is None, two)

    e = refused(openai.BadRequestError, lambda: client.chat.completions.create(
        model="records", messages=[{"role": "user", "content": record(9000, 1)}]))
    check(e and e.code == "context_length_exceeded" and "maximum context length is 4096 tokens" in e.message, e)
    refused(openai.BadRequestError, lambda: client.chat.completions.create(**dict(ask, temperature="hot")))

    with_schema(openai, client, ask)
    with_tools(openai, folder)
    with_responses(openai, client, messages, text)
    with_many(openai, server, folder)
    with_leaving(openai, server)


def with_schema(openai, client, ask):
    """What a schema lets through is valid, whatever the model would like to say."""
    schema = {"type": "object", "additionalProperties": False, "required": ["name", "codes"], "properties": {
        "name": {"type": "string", "enum": ["Bergen", "Oslo"]},
        "codes": {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "integer", "minimum": 10, "maximum": 99}}}}
    form = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": schema}}
    for stream in (False, True):
        answer = client.chat.completions.create(**dict(ask, max_tokens=200), response_format=form, stream=stream)
        text = "".join(c.choices[0].delta.content or "" for c in answer if c.choices) if stream else answer.choices[0].message.content
        value = json.loads(text)
        check(list(value) == ["name", "codes"] and value["name"] in ("Bergen", "Oslo") and len(value["codes"]) == 2 and
              all(10 <= c <= 99 for c in value["codes"]), text)
    wrong = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": {"type": "object", "not": {}}}}
    e = refused(openai.BadRequestError, lambda: client.chat.completions.create(**ask, response_format=wrong))
    check(e and e.body["message"].startswith("Invalid schema for response_format 'place'") and '"not"' in e.body["message"], e)
    # Too ambiguous, which is known only while the answer is made: the client's mistake all the same.
    many = {"type": "string", "pattern": "^((.{0,50}){0,50}){0,50}$"}
    form = {"type": "json_schema", "json_schema": {"name": "many", "schema": many}}
    refused(openai.BadRequestError, lambda: client.chat.completions.create(**ask, response_format=form))
    e = refused(openai.APIError, lambda: list(client.chat.completions.create(**ask, response_format=form, stream=True)))
    check(e and "too many things" in str(e) and e.type == "invalid_request_error", e)


NUMBER = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 99}}, "required": ["n"],
          "additionalProperties": False}


def with_tools(openai, folder):
    """Calls that are forced, in the styles of Llama, Qwen3-Coder, LFM2 and Mistral."""
    for sign in ("\"parameters\": dictionary", "<parameter=", "<|tool_call_start|>", "[ARGS]"):
        with_style(openai, folder, TOOL_TEMPLATE.replace("SIGN", sign))


def with_style(openai, folder, template):
    server = Server(SPILLWAY, folder, "--model-name", "records", "--context", "4096", template=template)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)
    messages = [{"role": "user", "content": "Call f."}]
    ask = dict(model="records", temperature=0, max_tokens=400, tools=[{"type": "function", "function": {"name": "f", "parameters": NUMBER}}],
               tool_choice="required")
    answer = client.chat.completions.create(**ask, messages=messages)
    call = (answer.choices[0].message.tool_calls or [None])[0]
    check(call and call.function.name == "f" and 10 <= json.loads(call.function.arguments)["n"] <= 99, answer)
    check(answer.choices[0].finish_reason == "tool_calls" and not answer.choices[0].message.content, answer)
    stream = list(client.chat.completions.create(**ask, messages=messages, stream=True))
    pieces = [c for e in stream for c in e.choices[0].delta.tool_calls or []]
    check("".join(p.function.arguments or "" for p in pieces) == call.function.arguments and pieces[0].function.name == "f" and
          stream[-1].choices[0].finish_reason == "tool_calls", stream)
    messages += [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "42"}]
    check(client.chat.completions.create(model="records", messages=messages, max_tokens=5).choices[0].message.role == "assistant", "a result")
    check(server.end() == 0, server.text()[-2000:])


def with_responses(openai, client, messages, text):
    ask = dict(model="records", input=messages[0]["content"], temperature=0, max_output_tokens=20)
    answer = client.responses.create(**ask)
    check(answer.output_text == text and answer.status == "completed", answer)
    with client.responses.stream(**ask) as stream:
        deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
        check("".join(deltas) == text and stream.get_final_response().output_text == text, deltas)
    refused(openai.BadRequestError, lambda: client.responses.create(**ask, previous_response_id="resp_1"))
    tools = [{"type": "web_search"}, {"type": "nobody_knows", "x": 1}]
    check(client.responses.create(**ask, tools=tools).output_text == text, "unknown types of tools")


def with_many(openai, server, folder):
    """32 clients at once; each gets the answer that it gets alone."""
    async def all_of():
        client = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)
        asks = [client.completions.create(model="records", prompt=record(40 + 37 * i, i), temperature=0, max_tokens=16,
                                          extra_body={"logits_hash": True}) for i in range(32)]
        return await asyncio.gather(*asks)
    answers = asyncio.run(all_of())
    for i in (0, 7, 31):
        text, logits = generated(folder, record(40 + 37 * i, i), 16)
        got = answers[i].choices[0].text, answers[i].usage.model_extra["logits_hash"][0]
        check(got == (text, logits.removeprefix("0x")), (i, got, text, logits))


def with_leaving(openai, server):
    """A client that gives up, streaming or not: its request ends; the same again finds what was computed."""
    prompt = record(3900, 77)
    before = server.metrics()['spillway:request_success_total{finished_reason="abort"}']
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0, timeout=0.1)
    refused(openai.APITimeoutError, lambda: client.completions.create(  # of which no machine makes 16 in this time
        model="records", prompt=prompt, max_tokens=3000, n=16, extra_body={"ignore_eos": True}))
    stream = client.with_options(timeout=60).completions.create(model="records", prompt=prompt, max_tokens=3000, stream=True,
                                                               extra_body={"ignore_eos": True})
    next(c for c in stream if c.choices[0].text)
    stream.close()
    m = server.settle()
    after = m and m['spillway:request_success_total{finished_reason="abort"}']
    check(after == before + 2, f"{after} requests were left, before {before}")
    answer = client.with_options(timeout=60).completions.create(model="records", prompt=prompt, max_tokens=1)
    check(answer.usage.prompt_tokens_details.cached_tokens > answer.usage.prompt_tokens // 2, answer.usage)


def with_anthropic(server, folder):
    import anthropic
    client = anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0)
    prompt, messages = question()
    text, _ = generated(folder, prompt, 20)
    ask = dict(model="records", messages=messages, max_tokens=20, extra_body={"temperature": 0})
    answer = client.messages.create(**ask)
    check(answer.content[0].text == text and answer.stop_reason == "end_turn", answer)
    with client.messages.stream(**ask) as stream:
        check("".join(stream.text_stream) == text, "a stream of messages")
        check(stream.get_final_message().usage.output_tokens == answer.usage.output_tokens, stream.get_final_message())
    count = client.messages.count_tokens(model="records", messages=messages).input_tokens
    u = answer.usage
    check(count == u.input_tokens + u.cache_read_input_tokens + u.cache_creation_input_tokens, (count, u))
    e = refused(anthropic.BadRequestError, lambda: client.messages.create(
        **dict(ask, messages=[{"role": "user", "content": record(9000, 1)}])))
    check(e and "prompt is too long: " in str(e) and " tokens > 4096 maximum" in str(e), e)
    refused(anthropic.NotFoundError, lambda: client.messages.create(**dict(ask, model="another")))
    check(client.models.list().data[0].id == "records", "models")


def with_langchain_openai(server, folder):
    from langchain_openai import ChatOpenAI
    prompt, messages = question()
    text, _ = generated(folder, prompt, 20)
    model = ChatOpenAI(model="records", base_url=server.url + "/v1", api_key="any", temperature=0, max_tokens=20)
    check(model.invoke(messages[0]["content"]).content == text, "ChatOpenAI")
    check("".join(c.content for c in model.stream(messages[0]["content"])) == text, "a stream of ChatOpenAI")


def with_langchain_anthropic(server, folder):
    from langchain_anthropic import ChatAnthropic
    prompt, messages = question()
    text, _ = generated(folder, prompt, 20)
    model = ChatAnthropic(model="records", base_url=server.url, api_key="any", max_tokens=20, temperature=0)
    check(model.invoke(messages[0]["content"]).content == text, "ChatAnthropic")


def with_lm_eval(server, folder):
    """Log-likelihoods are, to the last bit, those of `spillway score`; the server's tokenizer is used."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    model = LocalCompletionsAPI(base_url=server.url + "/v1/completions", model="records", tokenizer_backend="remote", max_length=4096)
    text = record(200, 3)
    score = json.loads(subprocess.run([SPILLWAY, "score", MODEL, "--text", text, "--json", "--quiet", "--device", "cpu", "--threads", "2"],
                                      check=True, capture_output=True).stdout)
    first, rest = text[:3], text[3:]
    likely = model.loglikelihood([Instance("loglikelihood", {}, (first, rest), 0), Instance("loglikelihood", {}, (text, " The access"), 1)])
    check(model.tok_encode(first) == model.tok_encode(text)[:1], "the first token")
    check(likely[0] == (score["log_likelihood"], False) and likely[1][1] is True, (likely, score))
    answer = model.generate_until([Instance("generate_until", {}, (text, {"until": ["\n"], "max_gen_toks": 20}), 2)])
    check(answer == [generated(folder, text, 20)[0]], answer)


def main():
    clients = (with_openai, with_anthropic, with_langchain_openai, with_langchain_anthropic, with_lm_eval)
    ran = []
    with tempfile.TemporaryDirectory() as folder:
        server = None
        for client in clients:
            try:
                __import__(client.__name__.removeprefix("with_"))
            except ImportError:
                continue
            server = server or Server(SPILLWAY, folder, "--model-name", "records", "--context", "4096")
            before, start = len(failures), time.time()
            try:
                client(server, folder)
            except Exception as e:  # what a client raises is a failure
                check(False, f"{client.__name__}: {e!r}")
            ran.append(f"{client.__name__[5:]}: {len(failures) - before} failed in {time.time() - start:.0f} s")
        if server:
            check(server.end() == 0, server.text()[-2000:])
    print(", ".join(ran) or "no package of a client: skipped", file=sys.stderr)
    sys.exit(77 if not ran else bool(failures))


main()
