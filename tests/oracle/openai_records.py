#!/usr/bin/env python3
"""Compares the lines that a job writes with the types of the openai package.

usage: openai_records.py TEST_RECORD   (the built test_record)

Every body must be what the client's types say, strictly, and the parts of a line must agree with each other.
Exit 77 where openai is missing.
"""
import json
import subprocess
import sys

try:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion
except ImportError:
    print("skipped: openai is not installed")
    sys.exit(77)


def check_chat(body):
    answer = ChatCompletion.model_validate(body, strict=True)
    for choice in answer.choices:
        for token in (choice.logprobs.content if choice.logprobs else []):
            text = bytes(token.bytes)
            assert token.token in (text.decode(errors="replace"), "".join(f"\\x{b:02x}" for b in text)), token
    return answer


def check_completion(body):
    answer = Completion.model_validate(body, strict=True)
    for choice in answer.choices:
        logprobs = choice.logprobs
        if not logprobs:
            continue
        ends = logprobs.text_offset[1:] + [len(choice.text)]
        assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset)
        for i, (token, begin, end) in enumerate(zip(logprobs.tokens, logprobs.text_offset, ends)):
            assert token.startswith("bytes:") or choice.text[begin:end] == token, (token, begin, end)
            if logprobs.top_logprobs:
                assert logprobs.top_logprobs[i][token] == logprobs.token_logprobs[i]
    return answer


def check_line(line):
    assert list(line)[:4] == ["id", "custom_id", "response", "error"] and line["error"] is None
    response = line["response"]
    assert isinstance(response["request_id"], str)
    if response["status_code"] != 200:
        error = response["body"]["error"]
        assert isinstance(error["message"], str) and isinstance(error["type"], str)
        return None
    body = response["body"]
    answer = (check_chat if body["object"] == "chat.completion" else check_completion)(body)
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens
    assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
    return body["object"]


def main():
    out = subprocess.run([sys.argv[1], "--print"], check=True, capture_output=True, text=True).stdout
    kinds = [check_line(json.loads(line)) for line in out.splitlines()]
    print({kind: kinds.count(kind) for kind in kinds})
    return 0 if kinds.count("chat.completion") > 2 and kinds.count("text_completion") > 2 and None in kinds else 1


if __name__ == "__main__":
    sys.exit(main())
