//! Operations on each number.

use candle_core::{D, Result, Tensor};

use super::super::kernel::layout_error;
use super::THREADS;
use super::launch::{Launch, unwritten};

/// Numbers that a block takes.
const PER_BLOCK: usize = 4 * THREADS;

fn of_one_shape<const N: usize>(op: &'static str, tensors: [&Tensor; N]) -> Result<[Tensor; N]> {
    if let Some(other) = tensors.iter().find(|tensor| tensor.shape() != tensors[0].shape()) {
        return layout_error(op, format!("{:?} and {:?} differ", tensors[0].dims(), other.dims()));
    }
    let ready: Vec<Tensor> = tensors.iter().map(|tensor| tensor.contiguous()).collect::<Result<_>>()?;
    Ok(ready.try_into().expect("as many as there were"))
}

/// A kernel that reads `inputs` and gives as many tensors as `outputs`, all of one shape.
fn apply<const N: usize, const OUT: usize>(op: &'static str, inputs: [&Tensor; N]) -> Result<[Tensor; OUT]> {
    let inputs = of_one_shape(op, inputs)?;
    let (dtype, count) = (inputs[0].dtype(), inputs[0].elem_count());
    let outputs: Vec<Tensor> =
        (0..OUT).map(|_| unwritten(&inputs[0], inputs[0].shape(), dtype)).collect::<Result<_>>()?;
    let mut launch = Launch::new(op, &inputs[0])?;
    for tensor in inputs.iter().chain(&outputs) {
        launch = launch.memory(tensor, dtype, count)?;
    }
    // SAFETY: the kernels `add` and `swiglu*` take their inputs, then their outputs, and visit `count` elements of each.
    unsafe { launch.long(count).run((count.div_ceil(PER_BLOCK), 1)) }?;
    Ok(outputs.try_into().expect("as many as were made"))
}

pub(crate) fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    apply("add", [a, b]).map(|[sum]| sum)
}

/// Gate and up may be two parts of the columns of one tensor.
pub(crate) fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let (rows, count, dtype) = (gate.dim(0)?, gate.elem_count(), gate.dtype());
    let lies_together = gate.is_contiguous() && up.is_contiguous();
    let are_parts = gate.shape() == up.shape() && gate.dim(D::Minus1)? * rows == count && gate.stride() == up.stride();
    if !lies_together && !are_parts {
        return swiglu(&gate.contiguous()?, &up.contiguous()?);
    }
    let sizes = if lies_together { [1, count] } else { [rows, count / rows.max(1)] };
    let [gate_rows, up_rows] =
        if lies_together { [gate, up].map(|x| x.reshape(sizes.to_vec())) } else { [gate, up].map(|x| Ok(x.clone())) };
    let (gate_rows, up_rows, out) = (gate_rows?, up_rows?, unwritten(gate, gate.shape(), dtype)?);
    let (launch, line) = Launch::new("swiglu", gate)?.lines(&gate_rows, dtype, sizes)?;
    let (launch, _) = launch.lines(&up_rows, dtype, sizes)?;
    let launch = launch.memory(&out, dtype, count)?.long(count).long(sizes[1]).long(line);
    // SAFETY: `out` has `count` elements, and the inputs have as many, in rows that are `line` apart.
    unsafe { launch.run((count.div_ceil(PER_BLOCK), 1)) }?;
    Ok(out)
}

pub(crate) fn swiglu_backward(gate: &Tensor, up: &Tensor, grad: &Tensor) -> Result<(Tensor, Tensor)> {
    apply("swiglu_backward", [gate, up, grad]).map(|[by_gate, by_up]| (by_gate, by_up))
}

pub(crate) fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let (width, count) = (bias.dims1()?, x.elem_count());
    if x.dims().last() != Some(&width) {
        return layout_error("add-bias", format!("x {:?} does not end in {width}", x.dims()));
    }
    let (x, bias) = (x.contiguous()?, bias.contiguous()?);
    let out = unwritten(&x, x.shape(), x.dtype())?;
    let launch = Launch::new("add_bias", &x)?.memory(&x, x.dtype(), count)?.memory(&bias, x.dtype(), width)?;
    let launch = launch.memory(&out, x.dtype(), count)?.long(count).words([width])?;
    // SAFETY: `x` and `out` have `count` elements, and each one's place modulo `width` is within `bias`.
    unsafe { launch.run((count.div_ceil(PER_BLOCK), 1)) }?;
    Ok(out)
}
