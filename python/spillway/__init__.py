"""spillway: text generation with models and contexts larger than memory.

    import spillway

    with spillway.Model("models/records", device_bytes=4 << 30) as model:
        for text in model.generate("The access code of", max_new_tokens=32):
            print(text, end="", flush=True)

The module calls the C library (spillway.h) by ctypes. Options of a model are the members of struct spw_options; options of
a request are those of struct spw_request and struct spw_sampling. An enumerator may be given by the end of its name:
backend="cpu" is SPW_BACKEND_CPU. Errors of the library raise spillway.Error with the library's text. A model and its
answers belong to one thread at a time; Ctrl-C ends a running step.
"""
import ctypes
import json
import os
import signal
import threading
import time

from . import _abi

globals().update((name, value) for name, value in vars(_abi).items() if name.startswith("SPW_"))  # SPW_ON_OOM_SPILL, ...
_library = ctypes.CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libspillway.so"))
for _name, (_result, _arguments) in _abi.functions.items():
    getattr(_library, _name).restype, getattr(_library, _name).argtypes = _result, _arguments
__version__ = _library.spw_version().decode()


class Error(Exception):
    """A call of the library failed. errno: positive, as in the module errno. smallest: of refused budgets, the smallest
    bytes that work: {"device": ..., "host": ..., "disk": ...}; None for other errors."""

    def __init__(self, code, text, smallest=None):
        super().__init__(text or os.strerror(-code))
        self.errno, self.smallest = -code, smallest


def _call(name, *arguments):
    """A function whose last argument is a struct spw_error."""
    error = _abi.spw_error()
    code = getattr(_library, name)(*arguments, ctypes.byref(error))
    return _check(code, error)


def _check(code, error):
    if code >= 0:
        return code
    budgets = error.budgets if error.refuses_budgets else None
    smallest = budgets and {key: budgets[i].smallest_bytes for i, key in enumerate(("device", "host", "disk"))}
    raise Error(code, error.text.decode(errors="replace"), smallest)


_PLAIN = (ctypes.c_int, ctypes.c_uint, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_float, ctypes.c_bool,
          ctypes.c_char_p)


def _members(struct, leave_out=""):
    """The members that a caller may set: numbers and texts."""
    return {key: kind for key, kind in struct._fields_ if kind in _PLAIN and not key.startswith("n_") and key != leave_out}


_OPTIONS, _SAMPLING = _members(_abi.spw_options), _members(_abi.spw_sampling, "stream")
_REQUEST = {key: kind for key, kind in _abi.spw_request._fields_ if key in (
    "max_new_tokens", "ignore_eos", "logprobs", "n_top_logprobs", "prompt_logprobs")}


def _set(struct, kinds, options):
    """Sets members by name."""
    for key, value in options.items():
        if key in struct.enums_ and isinstance(value, str):
            values = getattr(_abi, struct.enums_[key])
            ends = [name for name in values if name.lower().endswith("_" + value.lower())]
            if not ends:
                raise ValueError(f"{key}: found {value!r}, expected the end of one of {', '.join(values)}")
            value = values[min(ends, key=len)]
        elif kinds[key] is ctypes.c_char_p and value is not None:
            value = os.fsencode(value)
        elif isinstance(value, int) and kinds[key] not in (ctypes.c_bool, ctypes.c_float):
            if not 0 <= value < 256 ** ctypes.sizeof(kinds[key]):  # ctypes would cut it
                raise ValueError(f"{key}: found {value}, expected a number from 0 to {256 ** ctypes.sizeof(kinds[key]) - 1}")
        setattr(struct, key, value)


def _check_names(given, *known):
    for key in given:
        if not any(key in kinds for kinds in known):
            raise TypeError(f"{key}: no such option; there are {', '.join(key for kinds in known for key in kinds)}")


def _values(struct):
    """A struct as a dictionary."""
    out = {}
    for key, kind in struct._fields_:
        value = getattr(struct, key)
        if isinstance(value, ctypes.Structure):
            value = _values(value)
        elif isinstance(value, ctypes.Array) and not isinstance(value, bytes):
            value = list(value)
        elif key in struct.enums_:
            value = next((name for name, n in getattr(_abi, struct.enums_[key]).items() if n == value), value)
        out[key] = value.decode() if isinstance(value, bytes) else value
    return out


def _options(given):
    options = _abi.spw_options()
    _library.spw_options_init(ctypes.byref(options))
    _check_names(given, _OPTIONS)
    _set(options, _OPTIONS, given)
    return options


def plan(path, **options):
    """What would lie where, and the bytes that a step moves (struct spw_plan_info), as a dictionary. Loads nothing."""
    out = _abi.spw_plan_info()
    _call("spw_plan_query", ctypes.byref(out), os.fsencode(path), ctypes.byref(_options(options)))
    return _values(out)


class Answer:
    """An answer: iterate over it for its text, which comes as it is generated. What came so far is in `text` and
    `reasoning`. At the end: tokens, finish ("eos", "length", "stop", "canceled"), n_reused (tokens of the prompt that were not
    computed), logits_hash, and where they were asked for logprobs, top_logprobs, prompt_logprobs, prompt_top_logprobs."""

    def __init__(self, model, prompt, stop, logit_bias, form, is_open, options):
        request, n = _abi.spw_request(max_new_tokens=128), len(prompt)
        _check_names(options, _REQUEST, _SAMPLING)
        _set(request.sampling, _SAMPLING, {key: value for key, value in options.items() if key in _SAMPLING})
        _set(request, _REQUEST, {key: value for key, value in options.items() if key in _REQUEST})
        stop = [stop] if isinstance(stop, str) else list(stop)
        biases = [(int(token), bias) for token, bias in logit_bias.items()]
        prompt = (ctypes.c_int32 * n)(*prompt)
        request.prompt, request.n_prompt = prompt, n
        stops = (ctypes.c_char_p * len(stop))(*(text.encode() for text in stop))
        request.stop, request.n_stop = ctypes.cast(stops, ctypes.c_void_p), len(stop)
        request.sampling.logit_bias = (_abi.spw_logit_bias * len(biases))(*biases)
        request.sampling.n_logit_bias = len(biases)
        request.text = bool(model._tokenizer)
        self.n_prompt, self.text, self.reasoning, self.finish, self.tokens = n, "", "", None, []
        self._model, self._pieces, self._failed, self._splitter = model, [], None, None
        if form:
            request.shown, request.n_shown = form.specials.ids, form.specials.n
            self._splitter = _abi.spw_splitter()
            _library.spw_splitter_init(ctypes.byref(self._splitter), ctypes.byref(form), is_open)
        number = ctypes.c_uint64()
        _call("spw_batch_submit", model._batch, ctypes.byref(request), ctypes.byref(number))
        self._number = number.value
        model._answers[self._number] = self

    def __iter__(self):
        try:
            while self._pieces or self.finish is None:
                while not self._pieces and self.finish is None:
                    self._model._step()
                yield from self._take()
        finally:
            self.cancel()
        if self._failed:
            raise Error(-5, self._failed)

    def wait(self):
        """Runs it to its end. Returns the answer."""
        for _ in self:
            pass
        return self

    def cancel(self):
        """Ends it with the tokens that it has."""
        if self.finish is None and self._model._batch:
            _library.spw_batch_cancel(self._model._batch, self._number)
            self._model._take_events()

    def _take(self):
        pieces, self._pieces = self._pieces, []
        return pieces

    def _add(self, is_reasoning, text):
        if is_reasoning:
            self.reasoning += text
        elif text:
            self.text += text
            self._pieces.append(text)

    def _event(self, event):
        text = ctypes.string_at(_address(event, "text"), event.text_bytes) if event.text_bytes else b""
        if event.kind == _abi.SPW_EVENT_TEXT and self._splitter:
            _library.spw_splitter_push(ctypes.byref(self._splitter), text, len(text), self._emit(), None)
        elif event.kind == _abi.SPW_EVENT_TEXT:
            self._add(False, text.decode())
        elif event.kind == _abi.SPW_EVENT_END:
            if self._splitter:
                _library.spw_splitter_finish(ctypes.byref(self._splitter), self._emit(), None)
            self._end(text.decode())

    def _emit(self):
        def emit(_, is_reasoning, text, n_bytes):
            self._add(is_reasoning, ctypes.string_at(text, n_bytes).decode())
            return 0

        return _abi.spw_splitter_emit(emit)

    def _end(self, reason):
        result = _abi.spw_result()
        _library.spw_batch_take(self._model._batch, self._number, ctypes.byref(result))
        del self._model._answers[self._number]
        self.tokens, n_top = result.tokens[:result.n_tokens], result.n_top_logprobs
        self.n_reused, self.logits_hash = result.n_reused, f"{result.logits_hash:016x}"
        for key, n in (("logprobs", len(self.tokens)), ("prompt_logprobs", self.n_prompt)):
            numbers, tops = getattr(result, key), getattr(result, key.replace("logprobs", "top_logprobs"))
            setattr(self, key, numbers[:n] if numbers else None)
            rows = tops and [[(top.token, top.logprob) for top in tops[i * n_top:(i + 1) * n_top]] for i in range(n)]
            setattr(self, key.replace("logprobs", "top_logprobs"), rows or None)
        self.finish = _values(result)["finish"][len("SPW_FINISH_"):].lower()
        self._failed = reason if self.finish == "failed" else None
        _library.spw_result_free(ctypes.byref(result))


def _address(struct, key):
    return ctypes.c_void_p.from_buffer(struct, getattr(type(struct), key).offset).value


_ON_PROGRESS = dict(_abi.spw_options._fields_)["on_progress"]


class Model:
    """A model that is open. Requests that are begun before others have ended run together, at most options.sessions at a
    time. `on_progress(done, total)` is called as prompts are computed."""

    def __init__(self, path, *, on_progress=None, **options):
        self._engine, self._batch, self._tokenizer = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._source, self._template = ctypes.POINTER(_abi.spw_source)(), ctypes.c_void_p()
        self._answers, self._raised, self._on_progress = {}, None, on_progress
        self._interrupt, self._form = _abi.spw_interrupt(), _abi.spw_reasoning_form()
        self._callback = _ON_PROGRESS(self._progress)
        self._options = _options(options)
        self._options.interrupt = ctypes.pointer(self._interrupt)
        self._options.on_progress = self._callback
        try:
            _call("spw_source_open", ctypes.byref(self._source), os.fsencode(path))
            self._part("tokenizer", self._tokenizer)
            _call("spw_engine_open", ctypes.byref(self._engine), os.fsencode(path), ctypes.byref(self._options))
            _call("spw_batch_open", ctypes.byref(self._batch), self._engine, self._tokenizer)
        except BaseException:
            self.close()
            raise
        self.backend = _library.spw_engine_backend(self._engine).decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if hasattr(self, "_source"):
            self.close()

    def close(self):
        """Ends running answers, and gives the memory back."""
        for answer in list(self._answers.values()):
            answer.cancel()
        for name in ("batch", "engine"):
            getattr(_library, f"spw_{name}_close")(getattr(self, f"_{name}"))
        _library.spw_chat_template_close(self._template)
        _library.spw_tokenizer_close(self._tokenizer)
        _library.spw_source_close(self._source)
        for name in ("engine", "batch", "template", "tokenizer"):
            setattr(self, f"_{name}", ctypes.c_void_p())
        self._source = ctypes.POINTER(_abi.spw_source)()

    def tokenize(self, text, add_special=True):
        """The token ids of a text."""
        tokens, n, raw = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t(), text.encode()
        self._need_tokenizer()
        _call("spw_tokenizer_encode", self._tokenizer, raw, len(raw), add_special, ctypes.byref(tokens), ctypes.byref(n))
        ids = tokens[:n.value]
        _library.spw_free(tokens)
        return ids

    def generate(self, prompt, *, stop=(), logit_bias={}, **options):
        """Continues a text, or a list of token ids. Returns an Answer."""
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else prompt
        return self._answer(tokens, stop, logit_bias, None, False, options)

    def chat(self, messages, *, tools=None, variables=None, stop=(), logit_bias={}, **options):
        """Answers a conversation, [{"role": "user", "content": ...}, ...]. `variables`: more variables of the chat template,
        such as {"enable_thinking": False}. Returns an Answer; its reasoning is not part of its text."""
        text = self._render(messages, tools, variables)
        is_open = _library.spw_reasoning_is_open(ctypes.byref(self._form), text, len(text))
        tokens = self.tokenize(text.decode(), add_special=False)
        return self._answer(tokens, stop, logit_bias, self._form, is_open, options)

    def batch(self, requests):
        """Runs requests together: dictionaries with the arguments of `generate`, or of `chat` where they have "messages".
        Returns their answers when all have ended."""
        answers = []
        try:
            for request in requests:
                answers.append((self.chat if "messages" in request else self.generate)(**request))
            return [answer.wait() for answer in answers]
        finally:
            for answer in answers:
                answer.cancel()

    def plan(self):
        """The plan that the model runs by (struct spw_plan_info), as a dictionary."""
        return _values(ctypes.cast(_library.spw_engine_plan(self._engine), ctypes.POINTER(_abi.spw_plan_info)).contents)

    def stats(self):
        """Bytes moved, peaks and budgets so far (struct spw_stats), as a dictionary."""
        out = _abi.spw_stats()
        _library.spw_engine_stats(self._engine, ctypes.byref(out))
        return _values(out)

    def _need_tokenizer(self):
        if not self._tokenizer:
            raise Error(-2, "the model is closed, or has no tokenizer: give token ids")

    def _answer(self, *arguments):
        if not self._batch:
            raise ValueError("the model is closed")
        return Answer(self, *arguments)

    def _part(self, name, out, *more):
        """A part of the model's files; a model may have no tokenizer."""
        error = _abi.spw_error()
        part = getattr(self._source.contents.ops.contents, name)
        code = part(ctypes.addressof(self._source.contents), *more, ctypes.addressof(out), ctypes.pointer(error))
        return code if code == -2 and name == "tokenizer" else _check(code, error)

    def _render(self, messages, tools, variables):
        self._need_tokenizer()
        if not self._template:
            self._part("chat_template", self._template, None, None)
            _library.spw_reasoning_find(ctypes.byref(self._form), self._template, self._tokenizer)
        request = _abi.spw_chat_request(add_generation_prompt=True)
        for key, value in (("messages", messages), ("tools", tools), ("extra", variables)):
            raw = json.dumps(value).encode() if value is not None else None
            setattr(request, key + "_json", raw)
            setattr(request, key + "_bytes", len(raw or b""))
        now, seconds = ctypes.create_string_buffer(256), ctypes.c_long(int(time.time()))
        ctypes.CDLL(None).localtime_r(ctypes.byref(seconds), now)
        request.now = ctypes.addressof(now)
        text, n = ctypes.c_void_p(), ctypes.c_size_t()
        _call("spw_chat_template_render", self._template, ctypes.byref(request), ctypes.byref(text), ctypes.byref(n))
        raw = ctypes.string_at(text, n.value)
        _library.spw_free(text)
        return raw

    def _interrupted(self, raised):
        self._raised = raised
        _library.spw_interrupt_raise(ctypes.byref(self._interrupt))

    def _progress(self, _, progress):
        """Inside of a step. What is raised here ends the step, and is raised again behind it."""
        try:
            if self._on_progress:
                self._on_progress(progress.contents.done, progress.contents.total)
        except BaseException as raised:
            self._interrupted(raised)

    def _step(self):
        error = _abi.spw_error()
        catches = (threading.current_thread() is threading.main_thread() and
                   signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        if catches:  # Python calls the handler inside of _progress
            signal.signal(signal.SIGINT, lambda *_: self._interrupted(KeyboardInterrupt()))
        try:
            code = _library.spw_batch_step(self._batch, ctypes.byref(error))
        finally:
            if catches:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        self._take_events()
        raised, self._raised = self._raised, None
        if raised:
            _library.spw_interrupt_clear(ctypes.byref(self._interrupt))
            raise raised
        _check(code, error)

    def _take_events(self):
        event = _abi.spw_event()
        while _library.spw_batch_event(self._batch, ctypes.byref(event)):
            if event.request in self._answers:
                self._answers[event.request]._event(event)
