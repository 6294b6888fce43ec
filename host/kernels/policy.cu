// The kernels of a policy on a CUDA device: what candle has no operation for, or one that is far too slow there.
#include "common.cuh"
#include "attention.cuh"
#include "layers.cuh"
#include "logits.cuh"

#define FOR_EACH_KERNEL(X)                                                                                                 \
    X(logit_stats_f32) X(logit_gradient_f32) X(top_ids_f32) X(draw_f32) X(causal_softmax_f32) X(causal_softmax_bf16)       \
    X(causal_softmax_backward_f32) X(causal_softmax_backward_bf16) X(append_to_cache_f32) X(append_to_cache_bf16)          \
    X(decode_attention_f32) X(decode_attention_bf16) X(rms_norm_f32) X(rms_norm_bf16) X(rms_norm_backward_f32)             \
    X(rms_norm_backward_bf16) X(swiglu_f32) X(swiglu_bf16) X(swiglu_backward_f32) X(swiglu_backward_bf16) X(rotate_f32)    \
    X(rotate_bf16) X(add_rows_f32)
