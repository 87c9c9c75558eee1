/* One document of summarize: its strategy, its parts and merges, their prompts. */
#include "tools/command/job/summarize/split.h"

#include "base/grow.h"
#include "tools/command/job/summarize/summarize_parts.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

void job_work_free(struct job_work *w)
{
    for (size_t i = 0; i < w->n_nodes; i++)
        json_decref(w->nodes[i].record);
    spw_free(w->nodes);
    spw_free(w->whole.tokens);
    spw_free(w->text);
    spw_free(w);
}

/* ---- prompts ---- */

/* The text of the document has no special tokens, whatever is written there. A model that can think
 * before it answers is asked for the answer alone. */
static int encode_filled(struct job_summarize *s, const struct job_filled *filled,
                         struct request_prompt *out, struct request_refusal *why)
{
    const struct spw_encoding e = {.text = filled->text.text,
                                   .bytes = filled->text.n,
                                   .add_special = true,
                                   .plain = filled->plain,
                                   .n_plain = filled->n_plain};
    if (!s->has_template)
        return request_encode_prompt(&s->reader, "text", &e, out, why);
    json_t *extra = json_pack("{s:b}", "enable_thinking", 0);
    int rc = extra ? request_encode_message(&s->reader, &e, extra, out, why)
                   : request_refuse_memory(why);
    json_decref(extra);
    return rc;
}

static int encode(struct job_summarize *s, enum job_task task, const struct job_work *w,
                  struct job_values values, struct request_prompt *out, struct request_refusal *why)
{
    struct job_filled filled;
    values.length = s->words;
    values.language = s->o->language;
    values.focus = s->o->focus;
    values.title = w->document->id;
    spw_trim(&values.text, &values.text_bytes);
    if (job_instructions_fill(&s->instructions, task, &values, &filled))
        return request_refuse_memory(why);
    int rc = encode_filled(s, &filled, out, why);
    job_filled_free(&filled);
    return rc;
}

/* ---- the strategy ---- */

static int encode_whole(struct job_summarize *s, struct job_work *w, struct request_refusal *why)
{
    const struct job_values values = {
        .part = 1, .n_parts = 1, .text = w->text, .text_bytes = w->bytes};
    if (w->whole.tokens)
        return 0;
    return encode(s, JOB_WHOLE, w, values, &w->whole, why);
}

/* Whether an encoder reads the whole document at once. */
static bool is_read(const struct job_summarize *s, const struct job_work *w)
{
    return !s->most_source || w->whole.n <= s->most_source;
}

static int refuse_call(struct request_refusal *why, int rc, struct spw_error *err)
{
    cli_name_options(err->text);
    if (rc == -E2BIG)
        return request_refuse(why, 400, "context_length_exceeded", NULL, "%s", err->text);
    return rc == -ENOMEM ? request_refuse_memory(why)
                         : request_refuse(why, 500, NULL, NULL, "%s",
                                          err->text[0] ? err->text : strerror(-rc));
}

/* One line for each document of a few; of many, for those that are read in parts. */
static void say_choice(const struct job_summarize *s, const struct job_work *w)
{
    enum { FEW = 3 };
    if (s->o->strategy == JOB_AUTO && (!w->is_whole || s->n_total <= FEW))
        cli_note("%s: %s: %s", w->document->id, w->is_whole ? "whole" : "map-reduce", w->why);
}

static int choose(struct job_summarize *s, struct job_work *w, struct request_refusal *why)
{
    struct spw_error err = {0};
    SPW_TRY(encode_whole(s, w, why));
    const uint64_t n = w->whole.n + s->answer;
    int fits = is_read(s, w) ? job_budget_fits(s, n, &err) : 0;
    if (!fits && s->most_source && is_read(s, w) && n <= s->limit)
        fits = job_budget_refuse(s, n, &err); /* shorter parts would make another summary */
    if (fits < 0)
        return refuse_call(why, fits, &err);
    w->is_whole = fits;
    const unsigned long long have = (unsigned long long)n, most = (unsigned long long)s->limit;
    if (!is_read(s, w))
        snprintf(w->why, sizeof w->why, "%zu tokens are more than the %llu that the encoder reads",
                 w->whole.n, (unsigned long long)s->most_source);
    else if (fits)
        snprintf(w->why, sizeof w->why, "%llu tokens with the answer fit the model and the budgets",
                 have);
    else if (n > s->limit)
        snprintf(w->why, sizeof w->why,
                 "%llu tokens with the answer are more than the context of %llu", have, most);
    else
        snprintf(w->why, sizeof w->why, "%llu tokens with the answer do not fit the budgets", have);
    return 0;
}

/* ---- nodes ---- */

static int add_nodes(struct job_work *w, size_t n, struct request_refusal *why)
{
    const size_t level = w->n_nodes ? w->nodes[w->n_nodes - 1].level + 1 : 0;
    if (spw_resize(&w->nodes, w->n_nodes + n, sizeof *w->nodes))
        return request_refuse_memory(why);
    for (size_t i = 0; i < n; i++)
        w->nodes[w->n_nodes + i] = (struct job_node){.level = level, .index = i};
    w->level_begin = w->n_nodes;
    w->n_nodes += n;
    w->n_left = n;
    return 0;
}

static int plan_window(struct job_summarize *s, struct job_work *w, struct request_refusal *why)
{
    static const enum job_task tasks[2] = {JOB_PART, JOB_MERGE};
    size_t n[2];
    for (int i = 0; i < 2; i++) {
        struct request_prompt empty = {0};
        /* An encoder may get the text alone, and no prompt is empty. */
        const struct job_values values = {.part = 1000,
                                          .n_parts = 1000,
                                          .text = s->most_source ? "." : "",
                                          .text_bytes = !!s->most_source};
        SPW_TRY(encode(s, tasks[i], w, values, &empty, why));
        n[i] = empty.n;
        spw_free(empty.tokens);
    }
    const struct job_room room = {s->window, s->most_source ? s->most_source : UINT64_MAX};
    struct job_window ignored;
    if (!job_window_plan(&w->window, room, n[0], n[1], s->answer))
        return 0;
    if (job_window_plan(&ignored, room, n[0], n[1], 1)) /* a shorter answer would not do */
        return request_refuse(
            why, 400, "context_length_exceeded", NULL,
            "%s (%zu and %zu tokens) leave no room for a text in %llu tokens%s; give shorter ones "
            "with --instructions",
            s->most_source ? "the prefixes of the texts" : "the instructions", n[0], n[1],
            (unsigned long long)spw_min_u64(room.prompt, room.tokens),
            s->most_source ? ", as many as the encoder reads" : "");
    return request_refuse(
        why, 400, "context_length_exceeded", NULL,
        "the instructions (%zu and %zu tokens) and an answer of %llu leave no room "
        "for a part in %llu tokens; give shorter ones with --instructions, or a "
        "smaller %s--max-new-tokens",
        n[0], n[1], (unsigned long long)s->answer, (unsigned long long)s->window,
        s->most_source ? "" : "--length or ");
}

static int cut(struct job_summarize *s, struct job_work *w, struct request_refusal *why)
{
    struct spw_error err = {0};
    struct job_part *parts;
    size_t n;
    int rc = job_split(w->text, w->bytes, w->window.part, job_count_with_tokenizer,
                       s->model.tokenizer, &parts, &n, &err);
    if (rc)
        return refuse_call(why, rc, &err);
    rc = add_nodes(w, n, why);
    for (size_t i = 0; i < n && !rc; i++) {
        w->nodes[i].begin = parts[i].begin;
        w->nodes[i].end = parts[i].end;
    }
    spw_free(parts);
    return rc;
}

static int begin_whole(struct job_summarize *s, struct job_work *w, struct request_refusal *why)
{
    SPW_TRY(encode_whole(s, w, why));
    if (!is_read(s, w))
        return request_refuse(why, 400, "context_length_exceeded", NULL,
                              "found %zu tokens, expected at most the %llu that the encoder reads",
                              w->whole.n, (unsigned long long)s->most_source);
    SPW_TRY(add_nodes(w, 1, why));
    w->nodes[0].end = w->bytes;
    return 0;
}

static int begin_parts(struct job_summarize *s, struct job_work *w, struct request_refusal *why)
{
    struct spw_error err = {0};
    int rc = job_budget_window(s, &err);
    if (rc)
        return refuse_call(why, rc, &err);
    SPW_TRY(plan_window(s, w, why));
    SPW_TRY(cut(s, w, why));
    if (w->n_nodes > 1) {
        spw_free(w->whole.tokens);
        w->whole = (struct request_prompt){0};
    }
    return 0;
}

int job_work_begin(struct job_summarize *s, struct job_work *w, struct request_refusal *why)
{
    struct spw_error err = {0};
    struct cli_digest digest;
    int rc = job_document_text(w->document, NULL, &w->text, &w->bytes, &digest, &err);
    if (rc)
        return rc == -ENOMEM ? request_refuse_memory(why)
                             : request_refuse(why, 400, "invalid_file", NULL, "%s", err.text);
    w->digest = digest.hash;
    w->is_whole = s->o->strategy == JOB_ALL_AT_ONCE;
    snprintf(w->why, sizeof w->why, "as given with --strategy");
    if (s->o->strategy == JOB_AUTO)
        SPW_TRY(choose(s, w, why));
    SPW_TRY(w->is_whole ? begin_whole(s, w, why) : begin_parts(s, w, why));
    say_choice(s, w);
    return 0;
}

/* ---- merges ---- */

void job_node_text(const struct job_node *node, const char **text, size_t *bytes)
{
    const json_t *found = json_object_get(node->record, "text");
    *text = json_is_string(found) ? json_string_value(found) : "";
    *bytes = json_string_length(found);
    spw_trim(text, bytes);
}

/* With the blank line that follows it in a merge. */
static int count_summary(const struct job_summarize *s, const struct job_node *node, size_t *n,
                         struct request_refusal *why)
{
    struct spw_error err = {0};
    const char *text;
    size_t bytes;
    job_node_text(node, &text, &bytes);
    int rc = job_count_with_tokenizer(s->model.tokenizer, text, bytes, n, &err);
    *n += 2;
    return rc ? refuse_call(why, rc, &err) : 0;
}

static int begin_level(const struct job_summarize *s, struct job_work *w,
                       struct request_refusal *why)
{
    const size_t below = w->level_begin, n = w->n_nodes - below;
    size_t longest = 1, tokens;
    for (size_t i = 0; i < n; i++) {
        SPW_TRY(count_summary(s, &w->nodes[below + i], &tokens, why));
        longest = spw_max_u64(longest, tokens);
    }
    const size_t n_merges = job_merge_count(&w->window, n, longest);
    SPW_TRY(add_nodes(w, n_merges, why));
    for (size_t i = 0; i < n_merges; i++) {
        w->nodes[w->level_begin + i].begin = below + job_merge_first(n, n_merges, i);
        w->nodes[w->level_begin + i].end = below + job_merge_first(n, n_merges, i + 1);
    }
    return 0;
}

int job_work_record(const struct job_summarize *s, struct job_work *w, size_t node, json_t *record,
                    struct request_refusal *why)
{
    w->nodes[node].record = record;
    w->n_left--;
    return w->n_left || w->n_nodes - w->level_begin == 1 ? 0 : begin_level(s, w, why);
}

/* The texts of summaries, with blank lines between them. */
static int join(const struct job_work *w, const struct job_node *node, struct spw_text *out)
{
    const char *text;
    size_t n;
    for (size_t i = node->begin; i < node->end; i++) {
        job_node_text(&w->nodes[i], &text, &n);
        spw_text_add(out, text, n);
        spw_text_add(out, "\n\n", 2);
    }
    return out->failed ? -ENOMEM : 0;
}

/* ---- items ---- */

static int encode_node(struct job_summarize *s, struct job_work *w, const struct job_node *node,
                       struct request_prompt *out, struct request_refusal *why)
{
    struct job_values values = {0};
    if (node->level) {
        struct spw_text text = {0};
        int rc = join(w, node, &text) ? request_refuse_memory(why) : 0;
        values.n_parts = node->end - node->begin;
        values.text = text.text;
        values.text_bytes = text.n;
        if (!rc)
            rc = encode(s, JOB_MERGE, w, values, out, why);
        spw_free(text.text);
        return rc;
    }
    if (w->n_nodes == 1) {
        SPW_TRY(encode_whole(s, w, why));
        *out = w->whole;
        w->whole = (struct request_prompt){0};
        return 0;
    }
    values.part = node->index + 1;
    values.n_parts = w->n_nodes;
    values.text = w->text + node->begin;
    values.text_bytes = node->end - node->begin;
    return encode(s, JOB_PART, w, values, out, why);
}

static int fill_item(struct job_summarize *s, struct job_work *w, struct job_summary *x,
                     struct request_refusal *why)
{
    const struct job_node *node = &w->nodes[x->node];
    const struct cli_options *o = s->o;
    struct request *item = &x->item;
    const bool is_last = w->n_nodes - w->level_begin == 1;
    item->id =
        json_pack("[s, I, I]", w->document->id, (json_int_t)node->level, (json_int_t)node->index);
    item->prompts = spw_alloc_zero(1, sizeof *item->prompts);
    item->choices = spw_alloc_zero(1, sizeof *item->choices);
    item->stop.items = spw_alloc_zero(o->stop.n + 1, sizeof *item->stop.items);
    if (!item->id || !item->prompts || !item->choices || !item->stop.items)
        return request_refuse_memory(why);
    item->n_prompts = item->n_choices = 1;
    item->max_new_tokens = is_last ? s->answer : w->window.part_answer;
    item->sampling = cli_sampling(o);
    item->beams = cli_beams(o);
    item->stop.n = o->stop.n;
    for (size_t i = 0; i < o->stop.n; i++)
        item->stop.items[i] = o->stop.items[i];
    item->ignore_eos = o->ignore_eos;
    SPW_TRY(encode_node(s, w, node, &item->prompts[0], why));
    const struct request_prompt *p = &item->prompts[0];
    item->digest = XXH3_64bits_withSeed(p->tokens, p->n * sizeof *p->tokens, item->max_new_tokens);
    return 0;
}

int job_work_item(struct job_summarize *s, struct job_work *w, struct job_summary **out,
                  struct request_refusal *why)
{
    struct job_summary *x = *out = spw_alloc_zero(1, sizeof *x);
    if (!x)
        return request_refuse_memory(why);
    *x = (struct job_summary){.work = w, .node = w->n_given, .began = cli_now_seconds()};
    int rc = fill_item(s, w, x, why);
    w->n_given++;
    if (w->nodes[x->node].level == 0 && w->n_given == w->n_nodes) {
        spw_free(w->text);
        w->text = NULL;
    }
    if (rc) {
        request_free(&x->item);
        spw_free(x);
        *out = NULL;
    }
    return rc;
}
