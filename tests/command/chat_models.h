/* A folder with models for `spillway chat`, all with a tokenizer of bytes and one chat template: a
 * committed golden model `m`, `slow`, whose answers take long, `slides`, which has windows, and
 * `states`, most of whose layers have a state, and whose template drops earlier answers. */
#ifndef SPW_TESTS_COMMAND_CHAT_MODELS_H
#define SPW_TESTS_COMMAND_CHAT_MODELS_H

#include "tests/engine/tiny_model.h"

#include "tests/command/cases.h"
#include "tests/command/command_model.h"

static inline void chat_models(const char *test)
{
    static const char template[] =
        "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% if m.role == 'assistant' %}#"
        "{% endif %}{% endfor %}{% if tools %}<t>{{ tools[0].name }}{% endif %}"
        "{% if documents %}<d>{{ documents[0].text }}{% endif %}"
        "{% if add_generation_prompt %}<a>{% endif %}";
    static const char forgetful[] =
        "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<a>{% endif %}";
    static const struct {
        const char *name, *family;
    } models[] = {{"slow", "llama"}, {"slides", "gemma3_text"}, {"states", "qwen3_5_text"}};
    command_model(test);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct tiny_model m = *tiny_model_of(models[i].family);
        m.vocab = BYTE_TOKENIZER_VOCAB;
        m.positions = 100000;
        tiny_model_write(&m, in_folder(models[i].name));
        write_tokenizer(models[i].name);
    }
    write_text("m/chat_template.jinja", template);
    write_text("states/chat_template.jinja", forgetful);
    CHECK(sh("cp m/chat_template.jinja slow; cp m/chat_template.jinja slides") == 0);
}

#endif
