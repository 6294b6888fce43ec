// The kernels of a policy on a CUDA device. Storage is f32 or bf16, arithmetic f32. Every sum has a fixed order.
#include "common.cuh"
#include "logits.cuh"
#include "elementwise.cuh"
#include "norms.cuh"
#include "rope.cuh"
#include "attention.cuh"
#include "matrix.cuh"
#include "attention_bf16.cuh"
#include "decode.cuh"
#include "add_rows.cuh"
#include "optimizer.cuh"

#define FOR_EACH_DTYPE(X, name) X(name##_f32) X(name##_bf16)
#define FOR_EACH_WIDTH(X, name)                                                                                                  \
    X(name##_64_f32) X(name##_64_matrix_bf16) X(name##_128_f32) X(name##_128_matrix_bf16) FOR_EACH_DTYPE(X, name##_256)
#define FOR_EACH_KERNEL(X)                                                                                                        \
    X(logit_stats_f32) X(logit_gradient_f32) X(logit_gradient_to_bf16) X(top_ids_f32) X(draw_f32)                                \
    FOR_EACH_DTYPE(X, swiglu) FOR_EACH_DTYPE(X, swiglu_backward) FOR_EACH_DTYPE(X, add) FOR_EACH_DTYPE(X, add_bias)              \
    FOR_EACH_DTYPE(X, rms_norm) FOR_EACH_DTYPE(X, rms_norm_backward) FOR_EACH_DTYPE(X, sum_rows) X(sum_rows_to_bf16)             \
    FOR_EACH_DTYPE(X, move_heads) FOR_EACH_WIDTH(X, attention) FOR_EACH_WIDTH(X, attention_by_queries)                            \
    FOR_EACH_WIDTH(X, attention_by_keys) FOR_EACH_DTYPE(X, join_shares)                                                          \
    FOR_EACH_DTYPE(X, decode_heads) FOR_EACH_DTYPE(X, decode_attention) FOR_EACH_DTYPE(X, join_parts)                            \
    FOR_EACH_DTYPE(X, add_rows) X(gradient_squares) X(sum_of_squares) X(adamw) X(narrow_all)
