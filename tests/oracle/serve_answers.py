#!/usr/bin/env python3
"""Compares the answers of the server's protocols with the types of the openai and anthropic packages.

usage: serve_answers.py TEST_SERVE_PROTOCOLS   (the built test_serve_protocols)

Every body and every event must be what the client's types say, and the streams must give the clients' own
accumulators the same answer that the body of an answer in one piece has. Exit 77 where a package is missing.
"""
import json
import subprocess
import sys

try:
    from anthropic.types import Message, RawMessageStreamEvent
    from openai.types import Completion
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.responses import Response, ResponseStreamEvent
    from pydantic import TypeAdapter
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed")
    sys.exit(77)

RESPONSE_EVENT = TypeAdapter(ResponseStreamEvent)
MESSAGE_EVENT = TypeAdapter(RawMessageStreamEvent)


def events_of(text):
    """[(name or None, JSON or "[DONE]")]"""
    assert text.endswith("\n\n")
    events = []
    for block in text[:-2].split("\n\n"):
        lines = block.split("\n")
        name = lines[0].removeprefix("event: ") if lines[0].startswith("event: ") else None
        data, = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert len(lines) == 1 + (name is not None), block
        events.append((name, data if data == "[DONE]" else json.loads(data)))
    return events


# ---- bodies ----

def check_chat(body):
    answer = ChatCompletion.model_validate(body, strict=True)
    for choice in answer.choices:
        call, = choice.message.tool_calls
        assert (choice.finish_reason, call.function.name) == ("tool_calls", "f")
        assert call.function.arguments == '{"a":1.10}' and len(call.id) == 29
    return [choice.message.content for choice in answer.choices]


def check_completion(body):
    answer = Completion.model_validate(body, strict=True)
    assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
    return [choice.text for choice in answer.choices]


def check_response(body):
    answer = Response.model_validate(body)
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
    assert answer.output[2].arguments == '{"a":1.10}'
    assert answer.usage.input_tokens_details.cache_write_tokens == 0
    return [answer.output_text]


def check_message(body):
    answer = Message.model_validate(body)
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use"]
    assert answer.stop_reason == "tool_use" and answer.content[2].input == {"a": 1.1}
    return [answer.content[1].text]


# ---- streams ----

def check_chat_stream(text):
    events = events_of(text)
    assert events[-1] == (None, "[DONE]")
    texts, calls, finished = {}, {}, {}
    for _, event in events[:-1]:
        chunk = ChatCompletionChunk.model_validate(event, strict=True)
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            for call in choice.delta.tool_calls or []:
                calls[choice.index] = calls.get(choice.index, "") + call.function.arguments
            finished[choice.index] = choice.finish_reason
    assert set(finished.values()) == {"tool_calls"} and set(calls.values()) == {'{"a":1.10}'}
    return [texts[i] for i in sorted(texts)]


def check_completion_stream(text):
    events = events_of(text)
    assert events[-1] == (None, "[DONE]")
    texts = {}
    for _, event in events[:-1]:
        for choice in event["choices"]:
            if choice["finish_reason"] is None:  # the type of the package wants one, its client does not check
                choice["finish_reason"] = "stop"
        for choice in Completion.model_validate(event, strict=True).choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return [texts[i] for i in sorted(texts)]


def check_response_stream(text):
    events = events_of(text)
    for i, (name, event) in enumerate(events):
        assert name == event["type"] and event["sequence_number"] == i
        RESPONSE_EVENT.validate_python(event)
    done = [event["item"] for name, event in events if name == "response.output_item.done"]
    last = events[-1][1]["response"]
    assert events[-1][0] == "response.completed" and last["output"] == done
    return check_response(last)


def check_message_stream(text):
    from anthropic.lib.streaming._messages import accumulate_event
    events, snapshot, buffers = events_of(text), None, {}
    for name, event in events:
        assert name == event["type"]
        if name != "ping":
            snapshot = accumulate_event(event=MESSAGE_EVENT.validate_python(event), current_snapshot=snapshot, json_bufs=buffers)
    assert events[-1][0] == "message_stop"
    return check_message(json.loads(snapshot.model_dump_json()))


def check_failure(path, text):
    (name, event), = events_of(text)
    if path == "/v1/messages":
        assert name == "error" and event["error"] == {"type": "api_error", "message": "x"}
    elif path == "/v1/responses":
        RESPONSE_EVENT.validate_python(event)
        assert name == "response.failed" and event["response"]["error"]["message"] == "x"
    else:
        assert name is None and event["error"]["message"] == "x"


CHECKS = {
    "/v1/chat/completions": (check_chat, check_chat_stream),
    "/v1/completions": (check_completion, check_completion_stream),
    "/v1/responses": (check_response, check_response_stream),
    "/v1/messages": (check_message, check_message_stream),
}


def main():
    out = subprocess.run([sys.argv[1], "--print"], check=True, capture_output=True, text=True).stdout
    seen = {}
    for line in map(json.loads, out.splitlines()):
        path, kind, text = line["path"], line["kind"], line["text"]
        seen[path, kind] = seen.get((path, kind), 0) + 1
        if kind == "failure":
            check_failure(path, text)
        elif kind == "error":
            assert "x" == json.loads(text)["error"]["message"]
        else:
            whole, stream = CHECKS[path]
            texts = whole(json.loads(text)) if kind == "whole" else stream(text)
            assert set(texts) == {"Hi"}, (path, kind, texts)
    print(seen)
    return 0 if all((path, kind) in seen for path in CHECKS for kind in ("whole", "stream", "failure", "error")) else 1


if __name__ == "__main__":
    sys.exit(main())
