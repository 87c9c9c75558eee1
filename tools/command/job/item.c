/* See item.h. */
#include "tools/command/job/item.h"

#include <string.h>

void job_item_free(struct job_item *x)
{
    for (size_t i = 0; x->choices && i < x->n_prompts * x->n_choices; i++) {
        spw_free(x->choices[i].text);
        spw_result_free(&x->choices[i].result);
    }
    for (size_t i = 0; i < x->n_prompts; i++)
        spw_free(x->prompts[i].tokens);
    spw_free(x->choices);
    spw_free(x->prompts);
    spw_free(x->stop.items);
    spw_free(x->logit_bias);
    spw_free(x->text);
    spw_free(x->file);
    json_decref(x->line);
    json_decref(x->id);
    *x = (struct job_item){0};
}

/* Cuts off the first bytes of a character at the end, if its last ones are missing. */
static void cut_at_character(char *text)
{
    size_t n = strlen(text), begin = n;
    while (begin > 0 && ((unsigned char)text[begin - 1] & 0xc0) == 0x80)
        begin--;
    if (begin == 0 || !(text[begin - 1] & 0x80))
        return;
    unsigned char lead = (unsigned char)text[begin - 1];
    size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (n - begin + 1 < bytes)
        text[begin - 1] = 0;
}

int job_refuse(struct job_refusal *why, int status, const char *code, const char *param,
               const char *format, ...)
{
    va_list args;
    *why = (struct job_refusal){
        .status = status,
        .type = status >= 500 ? "server_error" : "invalid_request_error",
        .code = code,
    };
    snprintf(why->param, sizeof why->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(why->message, sizeof why->message, format, args);
    va_end(args);
    cut_at_character(why->param);
    cut_at_character(why->message);
    return status >= 500 ? -EIO : -EINVAL;
}

int job_refuse_memory(struct job_refusal *why)
{
    job_refuse(why, 500, NULL, NULL, "out of memory");
    return -ENOMEM;
}
