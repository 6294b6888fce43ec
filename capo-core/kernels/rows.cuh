// Moments of each segment's row, and Adam's rule for them.

// Adam at one particular step; as `optimizer.rs` has it.
struct Adam {
    double beta1, beta2, eps;
    // Divisors of a proposal, `1 - beta^step`; 1 for an update.
    double unbias1, unbias2;
    u64 steps;
    // True if rows without a gradient decay.
    int decay;
};

// The model's own moments: slots of 2 D floats in slabs of SLAB_ROWS.
constexpr u32 SLAB_ROWS = 1024;
struct Slots {
    float* const* slabs;
    // `[V]`: slot of a row, or NONE.
    u32* of_row;
    // Steps when last written, row, by slot.
    u64* written;
    u32* row;
};

// `mean = old1 m + new1 g`, `square = old2 v + new2 g^2`; no pointer stands for moments of zero.
struct Row {
    float* exp_avg;
    float* exp_avg_sq;
    double old1, new1, old2, new2;
};

__device__ inline Row row_rule(const Adam& adam, u64 age, double sign) {
    bool late = adam.decay && age > 0;
    double old1 = late ? pow(adam.beta1, (double)age + 1.0) : adam.beta1;
    double old2 = late ? pow(adam.beta2, (double)age + 1.0) : adam.beta2;
    return Row{nullptr,
               nullptr,
               sign * old1 / adam.unbias1,
               (1.0 - adam.beta1) / adam.unbias1,
               old2 / adam.unbias2,
               (1.0 - adam.beta2) / adam.unbias2};
}

__device__ inline void locate(Row& row, const Slots& slots, u32 slot, u32 width) {
    row.exp_avg = slots.slabs[slot / SLAB_ROWS] + (size_t)(slot % SLAB_ROWS) * 2 * width;
    row.exp_avg_sq = row.exp_avg + width;
}

// Of the trainer's moments, `[V, D]` each: those of a loss, which falls as the objective rises.
extern "C" __global__ void dense_rows(
    u32 count, const u32* values, const u32* starts, const u32* rows, float* exp_avg, float* exp_avg_sq, u32 width, Adam adam,
    Row* out) {
    u32 segment = blockIdx.x * blockDim.x + threadIdx.x;
    if (segment >= count) return;
    size_t place = (size_t)rows[values[starts[segment]]] * width;
    Row row = row_rule(adam, 0, -1.0);
    row.exp_avg = exp_avg + place, row.exp_avg_sq = exp_avg_sq + place;
    out[segment] = row;
}

// Of the model's own; rows from slot `first_new` on are taken as zero. Where `write`, they are noted as written at this step.
extern "C" __global__ void own_rows(
    u32 count, const u32* values, const u32* starts, const u32* rows, Slots slots, u32 first_new, int write, u32 width, Adam adam,
    Row* out) {
    u32 segment = blockIdx.x * blockDim.x + threadIdx.x;
    if (segment >= count) return;
    u32 slot = slots.of_row[rows[values[starts[segment]]]];
    bool seen = slot != NONE && slot < first_new;
    Row row = row_rule(adam, seen ? adam.steps - slots.written[slot] : 0, 1.0);
    if (seen || write) locate(row, slots, slot, width);
    if (write) {
        slots.written[slot] = adam.steps + 1;
        if (!seen) row.old1 = row.old2 = 0.0;
    }
    out[segment] = row;
}

// 1 where a segment's row has no slot yet, `[count + 1]`.
extern "C" __global__ void mark_new_rows(u32 count, const u32* values, const u32* starts, const u32* rows, const u32* of_row, u32* marks) {
    u32 segment = blockIdx.x * blockDim.x + threadIdx.x;
    if (segment > count) return;
    marks[segment] = segment < count && of_row[rows[values[starts[segment]]]] == NONE;
}

// Gives new rows the slots from `first_new` on, in their order.
extern "C" __global__ void place_new_rows(
    u32 count, const u32* values, const u32* starts, const u32* rows, const u32* prefix, u32 first_new, Slots slots) {
    u32 segment = blockIdx.x * blockDim.x + threadIdx.x;
    if (segment >= count || prefix[segment + 1] == prefix[segment]) return;
    u32 row = rows[values[starts[segment]]], slot = first_new + prefix[segment];
    slots.of_row[row] = slot;
    slots.row[slot] = row;
}
