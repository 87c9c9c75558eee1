/* How row operations are cut into tasks of about TASK_ELEMENTS elements: some rows, or a piece of a
 * long row. */
#ifndef SPW_MODEL_CPU_ROW_TASKS_H
#define SPW_MODEL_CPU_ROW_TASKS_H

#include "base/numbers.h"

enum { TASK_ELEMENTS = 8192 }; /* some microseconds of work */

static inline size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Rows of `elements` each that make one task. */
static inline size_t task_rows(size_t elements)
{
    return elements < TASK_ELEMENTS ? TASK_ELEMENTS / (elements ? elements : 1) : 1;
}

/* Columns [first, end) of rows [row, last). */
struct piece {
    size_t row, last, first, end;
};

static inline size_t piece_tasks(size_t rows, size_t cols)
{
    return spw_div_up(rows, task_rows(cols)) * spw_div_up(cols, TASK_ELEMENTS);
}

static inline struct piece piece_of(size_t task, size_t rows, size_t cols)
{
    size_t pieces = spw_div_up(cols, TASK_ELEMENTS), step = task_rows(cols);
    size_t row = task / pieces * step, first = task % pieces * TASK_ELEMENTS;
    return (struct piece){.row = row,
                          .last = smaller(row + step, rows),
                          .first = first,
                          .end = smaller(first + TASK_ELEMENTS, cols)};
}

#endif
