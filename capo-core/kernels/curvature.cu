// The curvature core's kernels, one unit. Compiled by NVRTC, without headers and without fast-math.
//
//   N  tokens          S  slots for a token's rows: its columns, and one for the sampled token (stride)
//   D  width           P  (token, row) pairs that take part, sorted by subset, row and token
//   R  runs of pairs that share subset and row ("segments")
//
// A pair's index is n * S + slot; slots that hold no row have row NONE. Everything O(S) per token is double, as are sums over
// tokens, whose terms cancel; the direction of a single token is float, and double again where an intermediate leaves its range.
// No result depends on the order in which threads, warps or blocks run.

#include "platform.cuh"
#include "supports.cuh"
#include "scan.cuh"
#include "sort.cuh"
#include "rows.cuh"
#include "tokens.cuh"
#include "subsets.cuh"
#include "reactions.cuh"

#define FOR_EACH_KERNEL(X)                                                                                              \
    X(collect_supports) X(squared_norms_f32) X(squared_norms_f16) X(squared_norms_bf16)                                 \
    X(scan_tiles) X(add_offsets) X(row_keys) X(subset_keys) X(count_digits) X(scatter_digits)                           \
    X(mark_heads) X(write_segments) X(weigh_tokens) X(weigh_rows)                                                       \
    X(dense_rows) X(own_rows) X(mark_new_rows) X(place_new_rows)                                                        \
    X(project_tokens_f32) X(project_tokens_f16) X(project_tokens_bf16)                                                  \
    X(project_tokens_wide_f32) X(project_tokens_wide_f16) X(project_tokens_wide_bf16)                                   \
    X(order_pairs) X(mark_lengths) X(list_marked)                                                                       \
    X(project_short_f32) X(project_short_f16) X(project_short_bf16)                                                     \
    X(project_medium_f32) X(project_medium_f16) X(project_medium_bf16)                                                  \
    X(project_long_f32) X(project_long_f16) X(project_long_bf16)                                                        \
    X(update_short_f32) X(update_short_f16) X(update_short_bf16)                                                        \
    X(update_medium_f32) X(update_medium_f16) X(update_medium_bf16)                                                     \
    X(update_long_f32) X(update_long_f16) X(update_long_bf16)                                                           \
    X(add_projections) X(follow_gradients) X(react)
