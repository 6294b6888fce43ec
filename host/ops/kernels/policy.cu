// The kernels of a policy on a CUDA device: what candle has no operation for, or one that needs a second array of all logits.
#include "common.cuh"
#include "logits.cuh"

#define FOR_EACH_KERNEL(X) X(logit_stats_f32) X(logit_gradient_f32) X(top_ids_f32) X(draw_f32)
