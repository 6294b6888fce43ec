//! Operations on each number.

use candle_core::{D, Result, Tensor};

use super::super::kernel::layout_error;
use super::THREADS;
use super::launch::{Launch, unwritten};

/// Numbers that a block takes.
const PER_BLOCK: usize = 4 * THREADS;

fn of_one_shape<const N: usize>(op: &'static str, tensors: [&Tensor; N]) -> Result<[Tensor; N]> {
    if let Some(other) = tensors
        .iter()
        .find(|tensor| tensor.shape() != tensors[0].shape())
    {
        return layout_error(
            op,
            format!("{:?} and {:?} differ", tensors[0].dims(), other.dims()),
        );
    }
    let ready: Vec<Tensor> = tensors
        .iter()
        .map(|tensor| tensor.contiguous())
        .collect::<Result<_>>()?;
    Ok(ready.try_into().expect("as many as there were"))
}

/// A kernel that reads `inputs` and gives as many tensors as `outputs`, all of one shape.
fn apply<const N: usize, const OUT: usize>(
    op: &'static str,
    inputs: [&Tensor; N],
) -> Result<[Tensor; OUT]> {
    let inputs = of_one_shape(op, inputs)?;
    let dtype = inputs[0].dtype();
    let count = inputs[0].elem_count();
    let outputs: Vec<Tensor> = (0..OUT)
        .map(|_| unwritten(&inputs[0], inputs[0].shape(), dtype))
        .collect::<Result<_>>()?;
    let mut launch = Launch::new(op, &inputs[0])?;
    for tensor in inputs.iter().chain(&outputs) {
        launch = launch.memory(tensor, dtype, count)?;
    }
    // SAFETY: the kernels `add` and `swiglu*` take their inputs, then their outputs, and visit
    // `count` elements of each.
    unsafe { launch.long(count).run(count.div_ceil(PER_BLOCK), 1) }?;
    Ok(outputs.try_into().expect("as many as were made"))
}

pub(crate) fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    apply("add", [a, b]).map(|[sum]| sum)
}

/// Gate and up may be two parts of the columns of one tensor.
pub(crate) fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if gate.shape() != up.shape() {
        return layout_error(
            "swiglu",
            format!("gate {:?} and up {:?} differ", gate.dims(), up.dims()),
        );
    }
    let count = gate.elem_count();
    let width = gate.dim(D::Minus1)?;
    let dtype = gate.dtype();
    let rows = count / width.max(1);
    let are_parts = gate.dim(0)? == rows && gate.stride() == up.stride();
    let out = unwritten(gate, gate.shape(), dtype)?;
    let [gate, up] = if are_parts {
        [gate.clone(), up.clone()]
    } else {
        [gate.contiguous()?, up.contiguous()?]
    };
    let (launch, line) = Launch::new("swiglu", &gate)?.lines(&gate, dtype, [rows, width])?;
    let (launch, _) = launch.lines(&up, dtype, [rows, width])?;
    let launch = launch
        .memory(&out, dtype, count)?
        .long(count)
        .long(width)
        .long(line);
    // SAFETY: `out` has `count` elements, and the inputs have as many, in rows that are `line`
    // apart.
    unsafe { launch.run(count.div_ceil(PER_BLOCK), 1) }?;
    Ok(out)
}

pub(crate) fn swiglu_backward(
    gate: &Tensor,
    up: &Tensor,
    grad: &Tensor,
) -> Result<(Tensor, Tensor)> {
    apply("swiglu_backward", [gate, up, grad]).map(|[by_gate, by_up]| (by_gate, by_up))
}

pub(crate) fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let width = bias.dims1()?;
    let count = x.elem_count();
    if x.dims().last() != Some(&width) {
        return layout_error(
            "add-bias",
            format!("x {:?} does not end in {width}", x.dims()),
        );
    }
    let x = x.contiguous()?;
    let bias = bias.contiguous()?;
    let out = unwritten(&x, x.shape(), x.dtype())?;
    let launch = Launch::new("add_bias", &x)?
        .memory(&x, x.dtype(), count)?
        .memory(&bias, x.dtype(), width)?;
    let launch = launch
        .memory(&out, x.dtype(), count)?
        .long(count)
        .words([width])?;
    // SAFETY: `x` and `out` have `count` elements, and each one's place modulo `width` is within
    // `bias`.
    unsafe { launch.run(count.div_ceil(PER_BLOCK), 1) }?;
    Ok(out)
}
