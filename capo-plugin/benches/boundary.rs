//! Cost of crossing the boundary: calls of a mask that does nothing, through the wire.
//!
//! `call` does not depend on the batch: the guard, the wire's view of the batch, the reports' ear.
//! `stage` adds the cost that grows with the batch, one byte per token: the copy of `token_mask`
//! and the check that nothing was set. Nothing copies a tensor (`tests/zero_copy.rs`).

use capo_plugin::prelude::*;
use capo_plugin::testing::{self, Fixture, Records};
use divan::{Bencher, black_box};

fn main() {
    divan::main();
}

#[keys]
struct Nothing {}

impl Mask for Nothing {
    fn mask(
        &mut self,
        _: &mut Ctx<'_>,
        batch: &Batch<'_>,
        token_mask: &mut [u8],
    ) -> Result<(), PluginError> {
        black_box((batch, token_mask));
        Ok(())
    }
}

/// B and T of the batches.
const SHAPES: [(usize, usize); 2] = [(1, 1), (96, 1024)];

/// One call without anything that grows with the batch.
#[divan::bench(args = SHAPES)]
fn call(bencher: Bencher<'_, '_>, (completions, tokens): (usize, usize)) {
    let fixture = Fixture::new(completions, tokens);
    let (batch, token_mask) = (fixture.batch(), vec![1; completions * tokens]);
    let (mut mask, mut sink) = (
        testing::mask::<Nothing>("").expect("it has no keys"),
        Records::default(),
    );
    bencher.bench_local(|| mask.step_end(&mut sink, black_box(&batch), &token_mask, true));
}

/// The whole mask stage.
#[divan::bench(args = SHAPES)]
fn stage(bencher: Bencher<'_, '_>, (completions, tokens): (usize, usize)) {
    let fixture = Fixture::new(completions, tokens);
    let (batch, mut token_mask) = (fixture.batch(), vec![1; completions * tokens]);
    let (mut mask, mut sink) = (
        testing::mask::<Nothing>("").expect("it has no keys"),
        Records::default(),
    );
    bencher.bench_local(|| mask.mask(&mut sink, black_box(&batch), black_box(&mut token_mask)));
}
